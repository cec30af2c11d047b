"""How much of a trace's prompts a prefix cache saves: the ideal, and what a manager reaches with pools of given sizes.

Published traces identify content by blocks (512 tokens in Mooncake's). The manager is driven at that granularity: a
block of the trace is played by one block of the manager's, whose few tokens spell the identity, and everything is
counted in the trace's own tokens. What a manager could hit inside such a block is therefore not seen.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvbench.errors import OutOfBlocks
from kvbench.interface import HOLE, CacheManager, ManagerCapabilities, PoolSpec
from kvbench.suites.rows import Progress, Row, unwatched
from kvbench.workloads import Request, Reuse, Trace, ideal_reuse
from kvbench.workloads.reuse import hash_block_of
from kvbench.workloads.tokens import MIN_BLOCK, prompt_tokens, unique_tokens

BLOCK_SIZES = (16, 32, 8, 64, 128, 256)
POOL_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Sizes of the pool, as shares of the slots that hold everything in the trace once."""


@dataclass(frozen=True)
class Sharing:
    """How the trace is played.

    pool_shares: sizes of the pool (see `POOL_SHARES`).
    running: requests that hold their blocks at the same time, the latest ones; fewer where the pool is too small.
    bytes_per_token: K/V bytes of one token in all layers (131,072: Llama 3.1 8B in bf16).
    """

    pool_shares: tuple[float, ...] = POOL_SHARES
    running: int = 16
    bytes_per_token: int = 131_072


def measure_ideal_reuse(trace: Trace) -> Iterator[Row]:
    """Rows of the trace alone: what a cache that forgets nothing would hit. Raises `UsageError` without identity."""
    reuse = ideal_reuse(trace)
    params = {"requests": len(trace.requests), "hash_block": hash_block_of(trace)}
    yield Row("ideal_token_hit_ratio", reuse.ratio, "ratio", params)
    yield Row("prompt_tokens", reuse.prompt_tokens, "tokens", params)
    yield Row("distinct_tokens", reuse.distinct_tokens, "tokens", params)


def measure_prefix_reuse(
    new_manager: Callable[[PoolSpec], CacheManager],
    declared: ManagerCapabilities,
    trace: Trace,
    sharing: Sharing = Sharing(),
    progress: Progress = unwatched,
) -> Iterator[Row]:
    """Rows of a manager with prefix caching, for each size of the pool.

    Raises `UsageError` for a trace without content identity.
    """
    scale = _Scale.choose(hash_block_of(trace), declared)
    reuse = ideal_reuse(trace)
    requests = len(trace.requests)
    for done, share in enumerate(sharing.pool_shares):
        text = f"{trace.name}, a pool for {share:.0%} of its content"
        spec = scale.pool(round(share * reuse.distinct_tokens), trace, sharing)
        player = _Player(new_manager(spec), scale)
        for index, request in enumerate(trace.requests):
            if index % 64 == 0:
                progress(text, done * requests + index, len(sharing.pool_shares) * requests)
            player.play(index, request, sharing.running)
        progress(text, (done + 1) * requests, len(sharing.pool_shares) * requests)
        yield from _rows(player, share, spec, trace, reuse, sharing)


def _rows(player: _Player, share: float, spec: PoolSpec, trace: Trace, reuse: Reuse, sharing: Sharing) -> Iterator[Row]:
    params = {
        "pool_share": share,
        "pool_tokens": spec.num_blocks * spec.block_size * player.scale.factor,
        "block_size": spec.block_size,
        "tokens_per_block": spec.block_size * player.scale.factor,
        "requests": len(trace.requests),
        "running": sharing.running,
    }
    yield Row("token_hit_ratio", player.hits / reuse.prompt_tokens, "ratio", params)
    yield Row("bytes_saved", player.hits * sharing.bytes_per_token, "bytes", params)
    if player.table_blocks:
        yield Row("memory_saved", 1 - player.distinct_blocks / player.table_blocks, "ratio", params)
    yield Row("refused_requests", player.refused, "requests", params)


@dataclass(frozen=True)
class _Scale:
    """A trace block of `hash_block` tokens is played by `block` tokens, a whole number of blocks of `block_size`."""

    hash_block: int
    block: int
    block_size: int

    @classmethod
    def choose(cls, hash_block: int, declared: ManagerCapabilities) -> _Scale:
        """One manager block a trace block, of the first supported size of `BLOCK_SIZES`.

        Blocks that are too small to spell an identity are taken several at a time.
        """
        block_size = declared.block_sizes.among(BLOCK_SIZES)[0]
        return cls(hash_block, max(-(-MIN_BLOCK // block_size), 1) * block_size, block_size)

    @property
    def factor(self) -> float:
        """Trace tokens that one played token stands for."""
        return self.hash_block / self.block

    def played(self, tokens: int) -> int:
        """Tokens that play `tokens` tokens of the trace: whole blocks exactly, the rest rounded up."""
        full, rest = divmod(tokens, self.hash_block)
        return full * self.block + -(-rest * self.block // self.hash_block)

    def pool(self, tokens: int, trace: Trace, sharing: Sharing) -> PoolSpec:
        """A pool for `tokens` tokens of the trace."""
        return PoolSpec(
            num_blocks=max(self.played(tokens) // self.block_size, 1),
            block_size=self.block_size,
            max_sequences=sharing.running,
            max_length=max(self.played(trace.longest), self.block_size),
        )


@dataclass
class _Player:
    """Plays requests one after the other; the latest keep their blocks, as running sequences do.

    hits: in tokens of the trace. table_blocks, distinct_blocks: blocks in the tables of running sequences, counted
    once each table and once altogether, summed over requests.
    """

    manager: CacheManager
    scale: _Scale
    hits: int = 0
    refused: int = 0
    table_blocks: int = 0
    distinct_blocks: int = 0
    running: deque[tuple[str, list[int]]] = field(default_factory=deque)
    holders: Counter[int] = field(default_factory=Counter)

    def play(self, index: int, request: Request, at_most: int) -> None:
        """Begin the request, compute its prompt and output, and keep it until others need its place."""
        name = f"request-{index}"
        length = self.scale.played(request.prompt_tokens)
        prompt = prompt_tokens(request, index, self.scale.block, length).tolist()
        decoded = unique_tokens(index, length, self.scale.played(request.final_tokens) - length).tolist()
        while len(self.running) >= at_most:
            self._finish_oldest()
        cached = self._begin(name, prompt, decoded)
        if cached is None:
            self.refused += 1
            return
        self.hits += min(int(cached * self.scale.factor), request.prompt_tokens - 1)
        table = [block for block in self.manager.block_table(name) if block != HOLE]
        self.running.append((name, table))
        self.holders.update(table)
        self.table_blocks += sum(len(held) for _, held in self.running)
        self.distinct_blocks += len(self.holders)

    def _begin(self, name: str, prompt: list[int], decoded: list[int]) -> int | None:
        """Cached tokens, or None for a request that does not fit into the pool even alone."""

        def decode() -> int:
            self.manager.extend(name, decoded)
            return len(decoded)

        cached = self._with_room(lambda: self.manager.begin(name, prompt))
        if cached is None:
            return None
        self.manager.take_copies()
        self.manager.commit(name, len(prompt))
        if decoded and self._with_room(decode) is None:
            self.manager.free(name)
            return None
        self.manager.take_copies()
        self.manager.commit(name, len(prompt) + len(decoded))
        return cached

    def _with_room(self, call: Callable[[], int]) -> int | None:
        """What `call` returns once enough of the running requests have finished; None if it fails without any."""
        while True:
            try:
                return call()
            except OutOfBlocks:
                if not self.running:
                    return None
                self._finish_oldest()

    def _finish_oldest(self) -> None:
        name, table = self.running.popleft()
        self.manager.free(name)
        self.holders.subtract(table)
        for block in table:
            if not self.holders[block]:
                del self.holders[block]
