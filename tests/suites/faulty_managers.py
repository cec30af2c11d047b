"""Managers with one fault each, and correct ones with unusual habits, made from the reference manager."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvbench.adapters.reference import ReferenceAdapter
from kvbench.interface import Capabilities, Sizes, Tier
from kvbench.reference.manager import ReferenceManager
from kvbench.subject import Subject


@dataclass
class ManagerAdapter:
    """A manager class as an adapter of its own, without a kernel."""

    manager_class: type
    capabilities: Capabilities
    name: str = "made for a test"
    version: str = "0"
    about: str = "made for a test"

    def manager(self, spec, config):
        return self.manager_class(spec)

    def kernel(self, config):
        raise AssertionError("not declared")


def subject(manager_class, **declared):
    """A subject around `manager_class`, which declares what the reference does unless told otherwise."""
    manager = replace(ReferenceAdapter.capabilities.manager, **declared)
    return Subject(ManagerAdapter(manager_class, Capabilities(manager=manager)))


# -- faults ------------------------------------------------------------------------------------------------------------


class NeedsOneBlockMore(ReferenceManager):
    def _require(self, seq, needed):
        super()._require(seq, needed + 1)


class TakesOneBlockMore(ReferenceManager):
    """At a boundary: a full last block gets an empty one behind it."""

    def blocks_for(self, length):
        return length // self.spec.block_size + 1 if length else 0


class SwapsInWithoutCopies(ReferenceManager):
    def take_copies(self):
        return [copy for copy in super().take_copies() if copy.tier is not Tier.IN]


class ResetsOnlyIdleBlocks(ReferenceManager):
    def reset(self):
        for block in list(self.pool.idle):
            self.prefixes.forget(block)
            self.pool.discard(block)


class LosesHitsOfFreedSequences(ReferenceManager):
    def _release(self, block):
        if self.pool.references[block] == 1:
            self.prefixes.forget(block)
        super()._release(block)


class CachesNoDecodedBlocks(ReferenceManager):
    """Only what was in the prompt is published."""

    def begin(self, seq, tokens, namespace=None):
        self.prompts = {**getattr(self, "prompts", {}), seq: len(tokens)}
        return super().begin(seq, tokens, namespace)

    def _publish(self, state):
        prompt = next(self.prompts.get(seq, 0) for seq, known in self.sequences.items() if known is state)
        committed, state.committed = state.committed, min(state.committed, prompt)
        super()._publish(state)
        state.committed = committed


class PreemptKeepsFirstBlock(ReferenceManager):
    def preempt(self, seq):
        for block in self._running(seq).blocks()[:1]:
            self.pool.references[block] += 1
        super().preempt(seq)


class ClaimsToHaveResumed(ReferenceManager):
    def resume(self, seq):
        super().resume(seq)
        return max(0, len(self.sequences[seq].tokens) - 1)


class JoinsCachedBlockUncounted(ReferenceManager):
    def _publish_block(self, prefix, group, block):
        chosen = super()._publish_block(prefix, group, block)
        if chosen != block:
            self.pool.references[chosen] -= 1
        return chosen


class CountsMoreHitsThanQueries(ReferenceManager):
    def stats(self):
        counted = super().stats()
        return {**counted, "prefix_queries": counted["prefix_hits"] // 2}


class ForgetsItsCountersAtReset(ReferenceManager):
    def reset(self):
        super().reset()
        self.counters = dict.fromkeys(self.counters, 0)


class EvictsBlocksInUse(ReferenceManager):
    """When nothing is unused, takes the block that was handed out last."""

    def _take(self):
        if self.pool.unused or self.pool.idle:
            self.newest = super()._take()
        else:
            self.pool.references[self.newest] += 1
        return self.newest

    def _require(self, seq, needed):
        super()._require(seq, max(0, needed - 1))


class BeginsTwice(ReferenceManager):
    """A second begin of a running sequence replaces it, and its blocks are lost."""

    def begin(self, seq, tokens, namespace=None):
        self.sequences.pop(seq, None)
        return super().begin(seq, tokens, namespace)


class CommitsBeyondTheEnd(ReferenceManager):
    def commit(self, seq, length):
        state = self._running(seq)
        if length > len(state.tokens):
            state.tokens.extend([0] * (length - len(state.tokens)))
            for table in state.tables:
                table.extend(self._take() for _ in range(self.blocks_for(length) - len(table)) if self.pool.free)
        super().commit(seq, length)


ONE_TOKEN_BLOCKS = {"block_sizes": Sizes(values=(1,))}
"""Declared by a manager whose blocks hold one token."""
