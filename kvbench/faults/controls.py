"""Correct managers with unusual habits: whoever calls one of them a fault is wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Control
from kvbench.interface import PoolSpec, Sizes
from kvbench.reference.blocks import BlockPool
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.prefix import Prefix
from kvbench.reference.sequence import SequenceState


class ShuffledPool(BlockPool):
    """Hands out any unused block."""

    def take(self) -> int:
        random.Random(len(self.unused)).shuffle(self.unused)
        return super().take()


class HandsOutAtRandom(ReferenceManager):
    """Free blocks have no order."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.pool = ShuffledPool(spec.num_blocks)


class HandsOutOldestFirst(ReferenceManager):
    """The block that was freed first is handed out first."""

    def _release(self, block: int) -> None:
        super()._release(block)
        if block in self.pool.unused:
            self.pool.unused.remove(block)
            self.pool.unused.insert(0, block)


class FreesLate(ReferenceManager):
    """What is freed can be had when something is asked for the next time, or a step ends."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.late: list[SequenceState] = []

    def free(self, seq: str) -> None:
        self.late.append(self._find(seq))
        del self.sequences[seq]

    def _flush(self) -> None:
        for state in self.late:
            self._release_all(state)
            self._drop_chain(state, 0)
        self.late = []

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        self._flush()
        return super().begin(seq, tokens, namespace)

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        self._flush()
        super().extend(seq, tokens, speculative)

    def take_copies(self) -> Sequence[Any]:
        self._flush()
        return super().take_copies()

    def resume(self, seq: str) -> int:
        self._flush()
        return super().resume(seq)

    def swap_out(self, seq: str) -> None:
        self._flush()
        super().swap_out(seq)

    def swap_in(self, seq: str) -> None:
        self._flush()
        super().swap_in(seq)

    def reset(self) -> None:
        self._flush()
        super().reset()


class KeepsBlockZero(ReferenceManager):
    """Block 0 is nobody's, and the pool says so."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.pool.unused.remove(0)

    @property
    def usable_blocks(self) -> int:
        """All but block 0."""
        return self.spec.num_blocks - 1


class NeverCaches(ReferenceManager):
    """Prefix caching is not declared, and there is none."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(replace(spec, prefix_caching=False))


class HoldsBackOneMoreBlock(ReferenceManager):
    """Of a prompt that ends with a block, the last two are computed again."""

    def _longest_hit(self, state: SequenceState) -> int:
        if state.tokens and len(state.tokens) % self.spec.block_size == 0:
            tokens, state.tokens = state.tokens, state.tokens[: -self.spec.block_size]
            try:
                return super()._longest_hit(state)
            finally:
                state.tokens = tokens
        return super()._longest_hit(state)


class CopiesTailsAtFork(ReferenceManager):
    """The partial block at the end is copied by the fork itself."""

    def fork(self, parent: str, child: str) -> None:
        state = self._running(parent)
        partial = len(state.tokens) % self.spec.block_size > 0
        if partial:
            self._require(child, len(state.tables))
        super().fork(parent, child)
        if partial:
            tables = self.sequences[child].tables
            self._replace_tails(list(tables), 0, tables)


class ExchangesNothing(ReferenceManager):
    """Equal blocks computed side by side stay two copies."""

    def _publish_block(self, prefix: Prefix, group: int, block: int) -> int:
        if group in prefix.blocks:
            return block
        return super()._publish_block(prefix, group, block)


class EvictsAtRandom(ReferenceManager):
    """Any idle block may go; no order is documented. A prefix outlives its continuations all the same."""

    def _take(self) -> int:
        if not self.pool.unused and self.pool.idle:
            parents = {id(self.prefixes.places[block][0].parent) for block in self.pool.idle}
            leaves = [block for block in self.pool.idle if id(self.prefixes.places[block][0]) not in parents]
            chosen = random.Random(len(self.prefixes.places)).choice(leaves or list(self.pool.idle))
            self.pool.idle.move_to_end(chosen, last=False)
        return super()._take()


class HitsBeforeTheWrite(ReferenceManager):
    """A prompt may be hit as soon as it is begun: its rows are there by the end of the step's writes."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        cached = super().begin(seq, tokens, namespace)
        state = self.sequences[seq]
        if state.chain:
            committed, state.committed = state.committed, len(state.tokens)
            self._publish(state)
            state.committed = committed
        return cached

    def commit(self, seq: str, length: int) -> None:
        """What the step has left to later ones may no longer be hit."""
        super().commit(seq, length)
        state = self._running(seq)
        full = length // self.spec.block_size
        for table in state.tables:
            for block in table[full:]:
                self.prefixes.forget(block)
        state.published = min(state.published, full)


ENTRIES = (
    Control("random-order", "free blocks are handed out in any order", with_manager("random-order", HandsOutAtRandom)),
    Control("oldest-first", "the block freed first is handed out first",
            with_manager("oldest-first", HandsOutOldestFirst)),
    Control("deferred-free", "freed blocks can be had a call or a step later",
            with_manager("deferred-free", FreesLate)),
    Control("null-block", "block 0 is kept back", with_manager("null-block", KeepsBlockZero)),
    Control("no-caching", "no prefix is ever cached",
            with_manager("no-caching", NeverCaches, prefix_caching=False, namespaces=False, eviction=None)),
    Control("capped-hit", "of a full hit two blocks are computed again",
            with_manager("capped-hit", HoldsBackOneMoreBlock)),
    Control("eager-copy", "a fork copies the partial block at once", with_manager("eager-copy", CopiesTailsAtFork)),
    Control("twin-blocks", "equal blocks stay two copies", with_manager("twin-blocks", ExchangesNothing)),
    Control("one-token-blocks", "a block holds one token",
            with_manager("one-token-blocks", ReferenceManager, block_sizes=Sizes((1,)))),
    Control("random-eviction", "any idle block may be evicted",
            with_manager("random-eviction", EvictsAtRandom, eviction=None)),
    Control("hit-before-write", "prompts begun in one step share before anything is written",
            with_manager("hit-before-write", HitsBeforeTheWrite,
                         operations=frozenset({"fork", "swap"}), eviction=None)),
)  # fmt: skip
