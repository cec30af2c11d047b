"""Managers with one fault each, and correct ones with unusual habits, made from the reference manager."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass, replace

from kvbench.adapters.reference import ReferenceAdapter
from kvbench.errors import OutOfBlocks
from kvbench.interface import Capabilities, Sizes, Tier
from kvbench.reference.blocks import BlockPool
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.sequence import Place
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


class FreesTwice(ReferenceManager):
    def free(self, seq):
        state = self.sequences.get(seq)
        last = state.blocks()[-1:] if state and state.place is Place.RUNNING else []
        super().free(seq)
        self.pool.unused.extend(block for block in last if block in self.pool.unused)


class ForgetsOtherHolders(ReferenceManager):
    def _release(self, block):
        self.pool.references[block] = 1
        super()._release(block)


class LeaksHitsOfRefusedBegin(ReferenceManager):
    def begin(self, seq, tokens, namespace=None):
        try:
            return super().begin(seq, tokens, namespace)
        except OutOfBlocks:
            for block in list(self.pool.idle)[:1]:
                self.pool.share(block)
            raise


class LeaksBlocksOfRefusedExtend(ReferenceManager):
    def extend(self, seq, tokens, speculative=False):
        try:
            super().extend(seq, tokens, speculative)
        except OutOfBlocks:
            if self.pool.free:
                self._take()
            raise


class DropsTableOfRefusedExtend(ReferenceManager):
    def extend(self, seq, tokens, speculative=False):
        try:
            super().extend(seq, tokens, speculative)
        except OutOfBlocks:
            self._release_tails(self.sequences[seq], max(0, len(self.sequences[seq].tables[0]) - 1))
            raise


class WritesIntoSharedTails(ReferenceManager):
    def _is_shared(self, block):
        return False


class OwesNoCopies(ReferenceManager):
    def take_copies(self):
        return [copy for copy in super().take_copies() if copy.tier is not Tier.WITHIN]


class ForksWithoutReferences(ReferenceManager):
    def fork(self, parent, child):
        super().fork(parent, child)
        for block in self.sequences[child].blocks():
            self.pool.references[block] -= 1


class HashesWithoutLineage(ReferenceManager):
    def _extend_chain(self, state, length):
        super()._extend_chain(state, 0)
        if not state.chain:
            return
        size = self.spec.block_size
        for index in range(len(state.chain) - 1, length // size):
            state.chain.append(
                self.prefixes.hold(state.chain[0], tuple(state.tokens[index * size : (index + 1) * size]))
            )


class IgnoresNamespaces(ReferenceManager):
    def begin(self, seq, tokens, namespace=None):
        return super().begin(seq, tokens, None)


class TakesEmptyNamespaceForNone(ReferenceManager):
    def begin(self, seq, tokens, namespace=None):
        return super().begin(seq, tokens, namespace or None)


class ForgetsNamespaceOnFork(ReferenceManager):
    def fork(self, parent, child):
        super().fork(parent, child)
        state = self.sequences[child]
        self._drop_chain(state, 0)
        state.namespace, state.published = None, 0


class ForgetsNamespaceOnResume(ReferenceManager):
    def resume(self, seq):
        state = self._find(seq, Place.PREEMPTED)
        self._drop_chain(state, 0)
        state.namespace = None
        return super().resume(seq)


class HitsEvictedBlocks(ReferenceManager):
    """The map keeps its entry when the block is handed out again, until the block is published anew."""

    def _take(self):
        return self.pool.take()

    def _publish_block(self, prefix, group, block):
        self.prefixes.forget(block)
        return super()._publish_block(prefix, group, block)


class PublishesAtBegin(ReferenceManager):
    def begin(self, seq, tokens, namespace=None):
        cached = super().begin(seq, tokens, namespace)
        state = self.sequences[seq]
        if state.chain:
            committed, state.committed = state.committed, len(state.tokens)
            self._publish(state)
            state.committed = committed
        return cached


class PublishesWholePromptAtFirstChunk(ReferenceManager):
    def commit(self, seq, length):
        super().commit(seq, len(self.sequences[seq].tokens))


class PublishesDrafts(ReferenceManager):
    def extend(self, seq, tokens, speculative=False):
        super().extend(seq, tokens, speculative)
        state = self.sequences[seq]
        if speculative and state.chain:
            committed, state.committed = state.committed, len(state.tokens)
            self._publish(state)
            state.committed = committed


class NeedsOneBlockMore(ReferenceManager):
    def _require(self, seq, needed):
        super()._require(seq, needed + 1)


class TakesOneBlockMore(ReferenceManager):
    """At a boundary: a full last block gets an empty one behind it."""

    def blocks_for(self, length):
        return length // self.spec.block_size + 1 if length else 0


class CountsFullBlocksOnly(ReferenceManager):
    def blocks_for(self, length):
        return max(1, length // self.spec.block_size)


class ReleasesWindowsEarly(ReferenceManager):
    def first_visible(self, group, position):
        return super().first_visible(group, position + 1)


class NeverReleasesWindows(ReferenceManager):
    def _release_behind_windows(self, state):
        pass


class SwapsInReversed(ReferenceManager):
    def swap_in(self, seq):
        super().swap_in(seq)
        state = self.sequences[seq]
        state.tables = [table[::-1] for table in state.tables]


class SwapsInWithoutCopies(ReferenceManager):
    def take_copies(self):
        return [copy for copy in super().take_copies() if copy.tier is not Tier.IN]


class LeaksHostBlocks(ReferenceManager):
    def _move_in(self, block):
        target = super()._move_in(block)
        if self.host.unused:
            self.host.unused.pop()
        return target


class SwapsOutWhatOthersHold(ReferenceManager):
    def swap_out(self, seq):
        held = self.sequences[seq].blocks() if seq in self.sequences else []
        super().swap_out(seq)
        for block in held:
            if self.pool.references[block] > 0 and block not in self.prefixes:
                self.pool.references[block] = 0
                self.pool.unused.append(block)


class FirstReleasedFirstEvicted(ReferenceManager):
    """Evicts in the order of first release: a hit does not refresh."""

    def __init__(self, spec):
        super().__init__(spec)
        self.first = {}

    def _release(self, block):
        super()._release(block)
        if block in self.pool.idle:
            self.first.setdefault(block, len(self.first))
            self.pool.idle = OrderedDict.fromkeys(sorted(self.pool.idle, key=lambda idle: self.first.get(idle, -1)))

    def _take(self):
        block = super()._take()
        self.first.pop(block, None)
        self.first = {known: place for place, known in enumerate(sorted(self.first, key=self.first.__getitem__))}
        return block


class EvictsPrefixBeforeContinuation(ReferenceManager):
    def _release_tails(self, state, kept):
        if kept == 0 and len(state.tables) == 1:
            state.tables[0].reverse()
        super()._release_tails(state, kept)


class ResetsOnlyIdleBlocks(ReferenceManager):
    def reset(self):
        for block in list(self.pool.idle):
            self.prefixes.forget(block)
            self.pool.discard(block)


class ResetsNothing(ReferenceManager):
    def reset(self):
        pass


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


class RunsNamespaceAndTokensTogether(ReferenceManager):
    """The key of the first block is a text: the namespace, then the tokens."""

    def begin(self, seq, tokens, namespace=None):
        size = self.spec.block_size
        first = "".join(map(str, tokens[:size]))
        return super().begin(seq, tokens, f"{namespace or ''}{first}")

    def _extend_chain(self, state, length):
        if not self.spec.prefix_caching:
            return
        if not state.chain:
            state.chain.append(self.prefixes.hold(None, state.namespace))
        size = self.spec.block_size
        for index in range(len(state.chain) - 1, length // size):
            tokens = () if index == 0 else tuple(state.tokens[index * size : (index + 1) * size])
            state.chain.append(self.prefixes.hold(state.chain[-1], tokens))


class HitsWholePrompts(ReferenceManager):
    def _longest_hit(self, state):
        state.tokens.append(0)
        try:
            return super()._longest_hit(state)
        finally:
            state.tokens.pop()


class TruncatesOneBlockTooMany(ReferenceManager):
    def truncate(self, seq, length):
        super().truncate(seq, length)
        state = self.sequences[seq]
        if length > self.spec.block_size and length % self.spec.block_size == 1:
            self._release_tails(state, self.blocks_for(length) - 1)


class PreemptsOneGroupOnly(ReferenceManager):
    def preempt(self, seq):
        kept = [block for table in self._running(seq).tables[1:] for block in table if block >= 0]
        for block in kept:
            self.pool.references[block] += 1
        super().preempt(seq)


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


class TrustsHashes(ReferenceManager):
    """Four bits and no comparison of tokens."""

    def __init__(self, spec):
        super().__init__(spec, lambda key: hash(key) % 16)
        hold = self.prefixes.hold

        def trusting(parent, content):
            key = self.prefixes.hash_function((None if parent is None else parent.key, content))
            for prefix in self.prefixes.buckets.get(key, []):
                if parent is not None and prefix.parent is not None:
                    prefix.uses += 1
                    return prefix
            return hold(parent, content)

        self.prefixes.hold = trusting


class BeginsTwice(ReferenceManager):
    """A second begin of a running sequence replaces it, and its blocks are lost."""

    def begin(self, seq, tokens, namespace=None):
        self.sequences.pop(seq, None)
        return super().begin(seq, tokens, namespace)


class FreesAgain(ReferenceManager):
    """A second free of a sequence gives its blocks back once more."""

    def __init__(self, spec):
        super().__init__(spec)
        self.gone = {}

    def free(self, seq):
        if seq in self.gone and seq not in self.sequences:
            self.pool.unused.extend(self.gone.pop(seq))
            return
        state = self.sequences.get(seq)
        if state is not None and state.place is Place.RUNNING:
            self.gone[seq] = state.blocks()[-1:]
        super().free(seq)


class CommitsBeyondTheEnd(ReferenceManager):
    def commit(self, seq, length):
        state = self._running(seq)
        if length > len(state.tokens):
            state.tokens.extend([0] * (length - len(state.tokens)))
            for table in state.tables:
                table.extend(self._take() for _ in range(self.blocks_for(length) - len(table)) if self.pool.free)
        super().commit(seq, length)


# -- correct, but unusual ----------------------------------------------------------------------------------------------


class ShuffledPool(BlockPool):
    def take(self):
        random.Random(len(self.unused)).shuffle(self.unused)
        return super().take()


class HandsOutAtRandom(ReferenceManager):
    def __init__(self, spec):
        super().__init__(spec)
        self.pool = ShuffledPool(spec.num_blocks)


class HandsOutOldestFirst(ReferenceManager):
    def _release(self, block):
        super()._release(block)
        if block in self.pool.unused:
            self.pool.unused.remove(block)
            self.pool.unused.insert(0, block)


class FreesLate(ReferenceManager):
    """What is freed becomes available when something is asked for the next time."""

    def __init__(self, spec):
        super().__init__(spec)
        self.late = []

    def free(self, seq):
        state = self._find(seq)
        self.late.append((seq, state))
        state.tokens = list(state.tokens)
        del self.sequences[seq]

    def _flush(self):
        for _, state in self.late:
            self._release_all(state)
            self._drop_chain(state, 0)
        self.late = []

    def begin(self, seq, tokens, namespace=None):
        self._flush()
        return super().begin(seq, tokens, namespace)

    def extend(self, seq, tokens, speculative=False):
        self._flush()
        super().extend(seq, tokens, speculative)

    def swap_out(self, seq):
        self._flush()
        super().swap_out(seq)

    def reset(self):
        self._flush()
        super().reset()


class KeepsBlockZero(ReferenceManager):
    def __init__(self, spec):
        super().__init__(spec)
        self.pool.unused.remove(0)

    @property
    def usable_blocks(self):
        return self.spec.num_blocks - 1


class NeverCaches(ReferenceManager):
    def __init__(self, spec):
        super().__init__(replace(spec, prefix_caching=False))


class HoldsBackOneMoreBlock(ReferenceManager):
    """Of a prompt that ends with a block, the last two are computed again."""

    def _longest_hit(self, state):
        if state.tokens and len(state.tokens) % self.spec.block_size == 0:
            tokens, state.tokens = state.tokens, state.tokens[: -self.spec.block_size]
            try:
                return super()._longest_hit(state)
            finally:
                state.tokens = tokens
        return super()._longest_hit(state)


class CopiesTailsAtFork(ReferenceManager):
    def fork(self, parent, child):
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

    def _publish_block(self, prefix, group, block):
        if group in prefix.blocks:
            return block
        return super()._publish_block(prefix, group, block)


ONE_TOKEN_BLOCKS = {"block_sizes": Sizes(values=(1,))}
"""Declared by a manager whose blocks hold one token."""
