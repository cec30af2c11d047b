"""A cache without paging: each sequence reserves consecutive blocks for as long as it may ever become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import kvbench
from kvbench.errors import InvalidRequest, UnknownSequence, Unsupported
from kvbench.interface import (
    AttentionKernel,
    CacheManager,
    Capabilities,
    ConfigOption,
    Copy,
    ManagerCapabilities,
    PoolSpec,
)
from kvbench.reference.contiguous import ContiguousPool, Span, buddy, reserve_max
from kvbench.reference.refusals import check_length, check_pool, check_tokens


class ContiguousAdapter:
    """What serving looked like before paging, made correct so that it can be compared."""

    name = "contiguous"
    version = kvbench.__version__
    about = "reserves each sequence's maximal length as consecutive blocks: what paging is compared with"
    capabilities = Capabilities(
        manager=ManagerCapabilities(
            operations=frozenset({"truncate", "truncate_accepted", "preempt", "abort"}), paged=False
        ),
        config=(
            ConfigOption(
                "policy",
                ("reserve-max", "buddy"),
                "reserve the maximal length, or the next power of two of blocks and move when it is outgrown",
            ),
        ),
    )

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        return ContiguousManager(spec, config.get("policy", "reserve-max"))

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        raise Unsupported("the contiguous adapter has no kernel; the reference's takes its place")


@dataclass
class _Sequence:
    """blocks: the most that it has needed since its run was reserved."""

    length: int
    blocks: int
    running: bool = True


class ContiguousManager:
    """A `CacheManager` whose tables are consecutive ids. The pool counts in blocks.

    With `reserve-max` a sequence reserves ceil(max_length / block_size) blocks, or the whole pool where that is smaller
    (a sequence that outgrows the pool is out of blocks); blocks that make up no whole reservation are not usable.
    No prefix is ever hit.
    """

    def __init__(self, spec: PoolSpec, policy: str) -> None:
        check_pool(spec)
        if len(spec.groups) > 1 or spec.groups[0].window is not None:
            raise Unsupported(f"groups {spec.groups}; contiguous sequences have one group without a window")
        self.spec = spec
        self._pool = _new_pool(spec, policy)
        self._sequences: dict[str, _Sequence] = {}
        self._copies: list[Copy] = []
        self._preemptions = 0

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        if namespace is not None:
            raise Unsupported(f"namespace {namespace!r}; without prefix caching there are none, leave it out")
        if seq in self._sequences:
            raise UnknownSequence(f"sequence {seq!r} is held already; free it first or choose another name")
        length = len(check_tokens(tokens))
        self._sequences[seq] = _Sequence(length, self._reserve(seq, length))
        return 0

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        state = self._running(seq)
        length = state.length + len(check_tokens(tokens))
        self._check_fits(seq, length)
        needed = self._blocks_for(length)
        if needed > state.blocks:
            before = self._pool.span(seq)
            self._pool.grow(seq, state.blocks, needed - state.blocks)
            self._owe_move(before, self._pool.span(seq), self._blocks_for(state.length))
            state.blocks = needed
        state.length = length

    def commit(self, seq: str, length: int) -> None:
        check_length(seq, length, self._running(seq).length)

    def free(self, seq: str) -> None:
        if self._find(seq).running:
            self._pool.release(seq)
        del self._sequences[seq]

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        if group != 0:
            raise InvalidRequest(f"group {group} does not exist; contiguous sequences have group 0 only")
        blocks = self._blocks_for(self._running(seq).length)
        start = self._pool.span(seq).start
        return range(start, start + blocks)

    def take_copies(self) -> Sequence[Copy]:
        taken, self._copies = self._copies, []
        return taken

    @property
    def usable_blocks(self) -> int:
        return self._pool.slots

    @property
    def free_blocks(self) -> int:
        return self._pool.free_slots()

    def stats(self) -> Mapping[str, int]:
        return {"preemptions": self._preemptions}

    def truncate(self, seq: str, length: int) -> None:
        """Keep the first `length` tokens; what is reserved stays reserved."""
        state = self._running(seq)
        check_length(seq, length, state.length)
        state.length = length

    def preempt(self, seq: str) -> None:
        """Release the run of `seq`."""
        state = self._running(seq)
        self._pool.release(seq)
        state.running = False
        self._preemptions += 1

    def resume(self, seq: str) -> int:
        """Reserve again; nothing is left of what was computed."""
        state = self._find(seq)
        if state.running:
            raise InvalidRequest(f"sequence {seq!r} is running; only a preempted one can be resumed")
        state.blocks = self._reserve(seq, state.length)
        state.running = True
        return 0

    def _reserve(self, seq: str, length: int) -> int:
        """Reserve a run; return how many of its blocks are needed now."""
        self._check_fits(seq, length)
        blocks = self._blocks_for(length)
        self._pool.admit(seq, blocks, blocks)
        return blocks

    def _owe_move(self, before: Span, after: Span, blocks: int) -> None:
        """Owe copies of the blocks that hold tokens, if the run is another."""
        if after != before:
            self._copies += [Copy(before.start + index, after.start + index) for index in range(blocks)]

    def _check_fits(self, seq: str, length: int) -> None:
        if length > self.spec.max_length:
            raise InvalidRequest(f"{seq!r} would have {length} tokens; max_length is {self.spec.max_length}")

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.spec.block_size)

    def _find(self, seq: str) -> _Sequence:
        if seq not in self._sequences:
            raise UnknownSequence(f"no sequence {seq!r}; begin it first ({len(self._sequences)} are held)")
        return self._sequences[seq]

    def _running(self, seq: str) -> _Sequence:
        state = self._find(seq)
        if not state.running:
            raise InvalidRequest(f"sequence {seq!r} is preempted; resume it first")
        return state


def _new_pool(spec: PoolSpec, policy: str) -> ContiguousPool:
    if policy == "buddy":
        return buddy(spec.num_blocks)
    if policy == "reserve-max":
        run = max(1, min(-(-spec.max_length // spec.block_size), spec.num_blocks))
        return reserve_max(spec.num_blocks // run * run, run)
    raise InvalidRequest(f"policy {policy!r}; choose reserve-max or buddy")


__all__ = ["ContiguousAdapter", "ContiguousManager"]
