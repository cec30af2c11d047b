"""transformers' `PagedAttentionCache`, of its continuous batching, as a manager and as a kernel.

The manager half makes the calls of the engine's scheduler: look a prompt's prefix up, store the rest, and after each
step mark the blocks that it completed. Under pressure the engine gives up all its unused cached blocks at once, which
is done here only when it helps, so that a refused call leaves them. Looking up attaches the blocks that it finds; where
the rest then finds no room they are let go again.

The engine keeps its first two blocks for padding. A manager's pool holds them, so ids begin at 2; a kernel's pool lies
behind them. The kernel half is `sdpa_attention_forward` under the engine's packed mask; the cache reads and writes at
indices that the engine computes from its own tables, and that are computed here from the given ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvbench.adapters.declared import check_cache, check_options, check_single_group
from kvbench.errors import AdapterError, InvalidRequest, OutOfBlocks, UnknownSequence, Unsupported
from kvbench.interface import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    NO_SLOT,
    AttentionKernel,
    AttentionResult,
    Batch,
    CacheManager,
    CacheSpec,
    Capabilities,
    Copy,
    KernelCapabilities,
    Limit,
    ManagerCapabilities,
    PoolSpec,
)

if TYPE_CHECKING:
    from torch import Tensor

RESERVED_BLOCKS = 2
"""Padding is read from the first and written to the second."""

LARGEST_TOKEN = 2**31 - 1
"""Token ids are hashed as 32-bit integers."""

MANAGER = ManagerCapabilities(operations=frozenset({"fork", "abort"}), prefix_caching=True)

KERNEL = KernelCapabilities(
    precisions=(FLOAT32, BFLOAT16, FLOAT16),
    operations=frozenset({"write", "attend", "copy_blocks", "plan"}),
    limits=(
        Limit("full_context_queries", "masked scores are the lowest finite number: a query that sees nothing sees all"),
    ),
)


def _version() -> str:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return "not installed"


class TransformersAdapter:
    """`transformers.generation.continuous_batching.cache.PagedAttentionCache`."""

    name = "transformers"
    version = _version()
    about = "transformers' continuous-batching cache with its SDPA path"
    capabilities = Capabilities(manager=MANAGER, kernel=KERNEL)

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        return TransformersManager(spec)

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        return TransformersKernel()


def load_engine() -> Any:
    """What is used of transformers, imported. Raises `AdapterError` where it is missing or too old."""
    try:
        from transformers import LlamaConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.distributed import DistributedHelper
        from transformers.generation.continuous_batching.requests import RequestState
        from transformers.generation.continuous_batching.utils import build_attention_mask
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
    except ImportError as error:
        raise AdapterError(
            f"adapter transformers ({_version()}; 5.19 is known to work): {error}; "
            "pip install -U 'kvbench[transformers]'"
        ) from None
    return SimpleNamespace(
        LlamaConfig=LlamaConfig,
        ContinuousBatchingConfig=ContinuousBatchingConfig,
        PagedAttentionCache=PagedAttentionCache,
        DistributedHelper=DistributedHelper,
        RequestState=RequestState,
        build_attention_mask=build_attention_mask,
        sdpa_attention_forward=sdpa_attention_forward,
    )


def new_cache(engine: Any, spec: CacheSpec, num_blocks: int) -> Any:
    """The engine's cache of `num_blocks` blocks besides those it keeps, for a model of full attention layers."""
    import torch

    model = engine.LlamaConfig(
        hidden_size=spec.num_q_heads * spec.head_dim,
        intermediate_size=1,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_q_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=128,
    )
    batching = engine.ContinuousBatchingConfig(
        page_size=spec.block_size,
        num_blocks=num_blocks,
        max_batch_tokens=1,  # sizes buffers of an input that is not used here
        max_memory_percent=0.9,
        max_blocks_per_request=0,  # no tables for a flash-attention kernel
    )
    dtype = getattr(torch, spec.precision.storage)
    return engine.PagedAttentionCache(model, batching, "cpu", engine.DistributedHelper(None, None), dtype=dtype)


# --------------------------------------------------------------------------------------------------------------------
# The manager half
# --------------------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """A sequence: the engine's state, whose `initial_tokens` are all its tokens, and how many of them are committed."""

    state: Any
    committed: int

    @property
    def length(self) -> int:
        """All tokens."""
        return len(self.state.initial_tokens)


class TransformersManager:
    """The scheduler's side of `PagedAttentionCache`, for a model of one small layer.

    The engine's own switch for prefix caching also makes forks share nothing, so without prefix caching prompts are not
    looked up and blocks not marked, and the switch stays on.
    """

    def __init__(self, spec: PoolSpec) -> None:
        check_single_group(spec)
        if spec.block_size < 1 or spec.num_blocks <= RESERVED_BLOCKS:
            raise InvalidRequest(
                f"{spec.num_blocks} blocks of {spec.block_size} tokens: this engine keeps {RESERVED_BLOCKS} blocks for "
                "itself, give more of at least 1 token"
            )
        self.spec = spec
        self._engine = load_engine()
        # A block of this layer is a multiple of 128 bytes, hence a sector of its own, and two sectors are kept back.
        layer = CacheSpec(num_q_heads=1, num_kv_heads=1, head_dim=16, block_size=spec.block_size)
        self._cache = new_cache(self._engine, layer, spec.num_blocks - RESERVED_BLOCKS)
        self._blocks = next(iter(self._cache.cache_allocators.values()))
        self._held: dict[str, Held] = {}
        self._owed: list[Copy] = []

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        if namespace is not None:
            raise Unsupported(f"namespace {namespace!r}: this engine keys prefixes by their tokens alone")
        self._refuse_running(seq)
        state = self._engine.RequestState(request_id=seq, initial_tokens=_checked(tokens))
        cached = self._cache.search_prefix_match(seq, state.initial_tokens) if self.spec.prefix_caching else 0
        try:
            self._store(state, cached, len(state.initial_tokens) - cached)
        except OutOfBlocks:
            self._cache.free_blocks(seq)
            raise
        self._held[seq] = Held(state, cached)
        return int(cached)

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        if speculative:
            raise Unsupported("speculative tokens: this engine cannot drop them again")
        held = self._find(seq)
        added = _checked(tokens)
        self._store(held.state, held.length, len(added))
        held.state.initial_tokens += added

    def commit(self, seq: str, length: int) -> None:
        held = self._find(seq)
        if not 0 <= length <= held.length:
            raise InvalidRequest(f"length {length} is not within the {held.length} tokens of {seq!r}")
        if length <= held.committed or not self.spec.prefix_caching:
            held.committed = max(held.committed, length)
            return
        held.state.position_offset = held.committed
        complete = self._cache.count_new_complete_blocks(held.state, length - held.committed)
        held.state.position_offset = held.committed = length
        self._cache.mark_complete_blocks(held.state, complete)

    def free(self, seq: str) -> None:
        self._find(seq)
        self._cache.free_blocks(seq)
        del self._held[seq]

    def fork(self, parent: str, child: str) -> None:
        held = self._find(parent)
        self._refuse_running(child)
        held.state.position_offset = held.committed
        needed = self._blocks.count_non_shareable_blocks(parent, held.committed)
        self._make_room(needed, f"a fork of {parent!r}")
        copies: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in self._cache.cache_allocators}
        if not self._cache.prepare_fork_request(held.state, [child], copies):
            raise OutOfBlocks(f"a fork of {parent!r} needs {needed} blocks, which the engine does not find")
        self._held[child] = Held(held.state.fork(child), held.committed)
        for sources, targets in copies.values():
            self._owed += map(Copy, sources, targets)

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        self._find(seq)
        return list(self._blocks.block_table[seq])

    def take_copies(self) -> Sequence[Copy]:
        owed, self._owed = self._owed, []
        return owed

    @property
    def usable_blocks(self) -> int:
        return self.spec.num_blocks - RESERVED_BLOCKS

    @property
    def free_blocks(self) -> int:
        return self._idle_blocks + len(self._blocks.ledger.cached_blocks)

    def stats(self) -> Mapping[str, int]:
        return {}

    @property
    def _idle_blocks(self) -> int:
        """Blocks that hold nothing."""
        pool = self._cache.pool
        return int(pool.count_free_blocks(self._blocks.index) + pool.num_free_sectors)

    def _store(self, state: Any, past: int, count: int) -> None:
        needed = self._blocks.needs_new_blocks(state.request_id, past, count)
        self._make_room(needed, f"{count} tokens of {state.request_id!r}")
        state.position_offset = past
        if not self._cache.can_store_request_tokens(state, count):
            raise OutOfBlocks(f"{count} tokens of {state.request_id!r} need {needed} blocks, which the engine refuses")

    def _make_room(self, needed: int, what: str) -> None:
        """Have the engine give up its unused cached blocks, where that makes the difference."""
        if needed > self.free_blocks:
            raise OutOfBlocks(f"{what} needs {needed} blocks, {self.free_blocks} are free: free a sequence first")
        if needed > self._idle_blocks:
            self._cache.evict_cached_blocks()

    def _find(self, seq: str) -> Held:
        if seq not in self._held:
            raise UnknownSequence(f"sequence {seq!r} is not running; begin it first")
        return self._held[seq]

    def _refuse_running(self, seq: str) -> None:
        if seq in self._held:
            raise UnknownSequence(f"sequence {seq!r} is running already; free it first")


def _checked(tokens: Sequence[int]) -> list[int]:
    from kvbench.reference.refusals import check_tokens

    checked = check_tokens(tokens)
    if checked and max(checked) > LARGEST_TOKEN:
        raise Unsupported(f"token id {max(checked)} is over {LARGEST_TOKEN}, the largest that this engine hashes")
    return checked


# --------------------------------------------------------------------------------------------------------------------
# The kernel half
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransformersCache:
    """The engine's cache and where its blocks lie. Block b is the engine's block `first_block` + b."""

    spec: CacheSpec
    num_blocks: int
    engine: Any
    allocator: Any
    first_block: int

    def rows(self, slots: Tensor) -> Tensor:
        """The rows that the engine calls indices; padding has one of its own."""
        block_size = self.spec.block_size
        blocks, offsets = slots // block_size + self.first_block, slots % block_size
        rows: Tensor = blocks * self.allocator.block_physical_stride + offsets
        padding: int = self.allocator.write_trash_index
        return rows.masked_fill(slots == NO_SLOT, padding)

    def arguments(self, reads: Tensor, writes: Tensor) -> dict[str, Any]:
        """What the engine's `update` takes by keyword."""
        import torch

        kind = self.allocator.layer_type  # lengths are for flash attention, but looked up in any case
        lengths = {"cu_seq_lens_k": {kind: torch.zeros(1, dtype=torch.int32)}, "max_length_k": {kind: 0}}
        return {**lengths, "read_index": [reads], "write_index": [writes]}


class TransformersKernel:
    """`update` of the cache, then SDPA over all rows' keys in one packed mask."""

    def __init__(self) -> None:
        self._engine = load_engine()

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> TransformersCache:
        from kvbench.reference.requests import check_spec

        check_spec(spec, num_blocks)
        check_cache(KERNEL, spec)
        if num_blocks < 1:
            raise InvalidRequest(f"num_blocks {num_blocks}: this engine needs 1 or more")
        made = new_cache(self._engine, spec, num_blocks)
        allocator = next(iter(made.cache_allocators.values()))
        return TransformersCache(spec, num_blocks, made, allocator, RESERVED_BLOCKS * allocator.blocks_per_sector)

    def forward(self, cache: TransformersCache, batch: Batch) -> AttentionResult:
        return self.plan(cache, batch)()

    def plan(self, cache: TransformersCache, batch: Batch) -> Callable[[], AttentionResult]:
        """Indices and mask are made once."""
        from kvbench.reference.requests import check_forward

        check_options(KERNEL, batch.options)
        check_forward(cache.spec, cache.num_blocks, batch)
        return self._ready(cache, batch, batch.k, batch.v, cache.rows(batch.slot_mapping))

    def attend(self, cache: TransformersCache, batch: Batch) -> AttentionResult:
        from kvbench.reference.requests import check_attend

        check_options(KERNEL, batch.options)
        check_attend(cache.spec, cache.num_blocks, batch)
        none = batch.q.new_zeros(0, cache.spec.num_kv_heads, cache.spec.head_dim)
        return self._ready(cache, batch, none, none, batch.slot_mapping[:0])()

    def write(self, cache: TransformersCache, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        from kvbench.reference.requests import check_write

        check_write(cache.spec, cache.num_blocks, k, v, slot_mapping, layer)
        written = len(slot_mapping)
        arguments = cache.arguments(slot_mapping[:0], cache.rows(slot_mapping))
        cache.engine.update(_heads_first(k[:written]), _heads_first(v[:written]), layer, arguments)

    def copy_blocks(self, cache: TransformersCache, pairs: Sequence[tuple[int, int]]) -> None:
        """One at a time: the engine copies a list at once, and a later copy may read what an earlier one wrote."""
        from kvbench.reference.requests import check_copies

        check_copies(cache.num_blocks, pairs)
        for source, target in pairs:
            blocks = ([source + cache.first_block], [target + cache.first_block])
            cache.engine.perform_cache_copy({cache.allocator.layer_type: blocks})

    def _ready(
        self, cache: TransformersCache, batch: Batch, k: Tensor, v: Tensor, writes: Tensor
    ) -> Callable[[], AttentionResult]:
        import torch

        spec, new = cache.spec, batch.query_start_loc.diff()
        if (new > batch.seq_lens).any():
            raise Unsupported(f"rows of {new.tolist()} new tokens in contexts of {batch.seq_lens.tolist()}")
        num_tokens = int(batch.query_start_loc[-1])
        arguments = cache.arguments(_reads(cache, batch), writes)
        arguments["attention_mask"] = self._mask(batch)
        arguments["scaling"] = spec.head_dim**-0.5 if batch.options.scale is None else batch.options.scale
        groups = spec.num_q_heads // spec.num_kv_heads
        module = SimpleNamespace(layer_idx=batch.layer, num_key_value_groups=groups, is_causal=False, training=False)

        def run() -> AttentionResult:
            out = batch.q.new_zeros(len(batch.q), spec.num_q_heads, spec.head_dim)
            q, keys, values = (_heads_first(tokens) for tokens in (batch.q[:num_tokens], k, v))
            with torch.no_grad():
                found, _ = self._engine.sdpa_attention_forward(module, q, keys, values, cache=cache.engine, **arguments)
            out[:num_tokens] = found[0]
            return AttentionResult(out)

        return run

    def _mask(self, batch: Batch) -> Tensor:
        """The engine's mask: block-diagonal over rows, causal within them. [1, 1, queries, keys]."""
        import torch

        starts = batch.query_start_loc.tolist()
        ends = [0, *batch.seq_lens.cumsum(0).tolist()]
        lowest = torch.finfo(batch.q.dtype).min
        mask = torch.full((1, 1, starts[-1], ends[-1]), lowest, dtype=batch.q.dtype)
        self._engine.build_attention_mask(mask, starts, ends)
        return mask


def _reads(cache: TransformersCache, batch: Batch) -> Tensor:
    """The rows of all contexts, one after the other. int64 [sum of seq_lens]."""
    import torch

    slots = [torch.zeros(0, dtype=torch.int64)]
    for table, length in zip(batch.block_tables.long(), batch.seq_lens.tolist(), strict=True):
        positions = torch.arange(length)
        slots.append(
            table[positions // cache.spec.block_size] * cache.spec.block_size + positions % cache.spec.block_size
        )
    return cache.rows(torch.cat(slots))


def _heads_first(tokens: Tensor) -> Tensor:
    """[n, heads, dim] as [1, heads, n, dim]."""
    return tokens.transpose(0, 1).unsqueeze(0)


__all__ = ["TransformersAdapter"]
