"""Faults of the prefix cache: hits of what is something else, of what is gone, or of what was never computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.errors import OutOfBlocks
from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.scene import Scene
from kvbench.interface import HOLE, PoolSpec
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.prefix import Content, Prefix
from kvbench.reference.sequence import SequenceState
from kvbench.subject import Subject

PROMPT = [1, 2, 3, 4, 5, 6, 7]


def resubmitted(scene: Scene, tokens: Sequence[int], namespace: str | None = None) -> int:
    """Compute a prompt, free it and begin it again; how much is cached then."""
    scene.begin("first", tokens, namespace)
    scene.step()
    scene.free("first")
    cached = scene.begin("again", tokens, namespace)
    scene.step()
    return cached


def expected_hit(scene: Scene, tokens: Sequence[int]) -> str | None:
    """What is wrong with the hit of a prompt that is begun again."""
    cached, least = resubmitted(scene, tokens), (len(tokens) - 1) // scene.spec.block_size * scene.spec.block_size
    scene.free("again")
    if cached < least or cached >= len(tokens):
        return f"{cached} of {len(tokens)} tokens are cached"
    return scene.said() or scene.leaked


# -- P1: keys without lineage ------------------------------------------------------------------------------------------


class HashesWithoutLineage(ReferenceManager):
    """A block's key is its own tokens, behind any prefix."""

    def _extend_chain(self, state: SequenceState, length: int) -> None:
        super()._extend_chain(state, 0)
        if not state.chain:
            return
        size = self.spec.block_size
        for index in range(len(state.chain) - 1, length // size):
            tokens = tuple(state.tokens[index * size : (index + 1) * size])
            state.chain.append(self.prefixes.hold(state.chain[0], tokens))


class SkipsCachedParents(ReferenceManager):
    """The parent of the first block that follows a prompt is the root, whatever stands before it."""

    def _extend_chain(self, state: SequenceState, length: int) -> None:
        first, size = len(state.chain) - 1, self.spec.block_size
        if first >= 1 and state.tables[0] and length // size > first:
            tokens = tuple(state.tokens[first * size : (first + 1) * size])
            state.chain.append(self.prefixes.hold(state.chain[0], tokens))
        super()._extend_chain(state, length)


class RestartsItsHash(ReferenceManager):
    """Blocks that are hashed after the prompt get keys that no prompt has."""

    def _extend_chain(self, state: SequenceState, length: int) -> None:
        if len(state.chain) <= 1 or not state.tables[0]:
            super()._extend_chain(state, length)
            return
        size = self.spec.block_size
        for index in range(len(state.chain) - 1, length // size):
            tokens = tuple(state.tokens[index * size : (index + 1) * size])
            state.chain.append(self.prefixes.hold(state.chain[-1], (0, *tokens)))


class HashesGroupsUnevenly(ReferenceManager):
    """The second group is keyed at twice the block size: every other block stands under its neighbour's key."""

    def _publish_block(self, prefix: Prefix, group: int, block: int) -> int:
        if group == 1 and prefix.parent is not None and prefix.parent.parent is not None:
            prefix = prefix.parent
        return super()._publish_block(prefix, group, block)


class SharesItsParentList(ReferenceManager):
    """A fork goes on in its parent's list of keys, which both then extend."""

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self._drop_chain(self.sequences[child], 0)
        self.sequences[child].chain = self.sequences[parent].chain

    def _drop_chain(self, state: SequenceState, keep: int) -> None:
        if sum(other.chain is state.chain for other in self.sequences.values()) > 1:
            state.chain = list(state.chain)
            for prefix in state.chain:
                prefix.uses += 1
        super()._drop_chain(state, keep)


def _equal_second_blocks(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", [1, 2, 3, 4, 5])
    scene.step()
    scene.begin("b", [7, 8, 3, 4, 5])
    scene.step()
    scene.step()
    return scene.said()


def _continued_hit(subject: Subject) -> str | None:
    """A hit is continued; a prompt that begins with the continuation must find nothing of it."""
    scene = Scene(subject, num_blocks=12)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.begin("b", [1, 2, 3])
    scene.step()
    scene.extend("b", 4, 5)
    scene.step()
    scene.begin("c", [3, 4, 9])
    scene.step()
    return scene.said()


def _decoded_then_asked(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=12)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.extend("a", 4, 5)
    scene.step()
    cached = scene.begin("b", [1, 2, 3, 4, 5])
    scene.step()
    return scene.said() or (None if cached == 4 else f"{cached} of 4 tokens are cached")


def _two_groups(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=16, windows=(None, None))
    scene.begin("a", PROMPT)
    scene.step()
    scene.begin("b", [*PROMPT, 8])
    scene.step()
    cached = scene.begin("c", PROMPT[:3])
    scene.step()
    return scene.said() or (None if cached == 2 else f"{cached} of 2 tokens are cached")


def _forked_keys(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=12)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.fork("a", "b")
    scene.extend("a", 4, 5)
    scene.step()
    scene.extend("b", 6, 7)
    scene.step()
    scene.begin("c", [1, 2, 3, 6, 7])
    scene.step()
    return scene.said()


# -- P5: collisions ----------------------------------------------------------------------------------------------------


class TrustsHashes(ReferenceManager):
    """Four bits of hash, and nothing is compared."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec, lambda key: hash(key) % 16)
        hold = self.prefixes.hold

        def trusting(parent: Prefix | None, content: Content) -> Prefix:
            key = self.prefixes.hash_function((None if parent is None else parent.key, content))
            for prefix in self.prefixes.buckets.get(key, []):
                if parent is not None and prefix.parent is not None:
                    prefix.uses += 1
                    return prefix
            return hold(parent, content)

        self.prefixes.hold = trusting  # type: ignore[method-assign]


class VerifiesTheLastBlock(ReferenceManager):
    """Four bits of hash; the tokens of a block are compared, its parents are not."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec, lambda key: hash(key) % 16)
        hold = self.prefixes.hold

        def trusting(parent: Prefix | None, content: Content) -> Prefix:
            key = self.prefixes.hash_function((None if parent is None else parent.key, content))
            for prefix in self.prefixes.buckets.get(key, []):
                if parent is not None and prefix.parent is not None and prefix.content == content:
                    prefix.uses += 1
                    return prefix
            return hold(parent, content)

        self.prefixes.hold = trusting  # type: ignore[method-assign]


def _many_prefixes(subject: Subject) -> str | None:
    """More prefixes than hashes, with equal second blocks."""
    scene = Scene(subject, num_blocks=400)
    for first in range(60):
        scene.begin(f"s{first}", [first, first, 3, 4, 5])
        scene.step()
    return scene.said()


# -- P6: nothing left to compute ---------------------------------------------------------------------------------------


class HitsWholePrompts(ReferenceManager):
    """A prompt that is cached as a whole is all hit."""

    def _longest_hit(self, state: SequenceState) -> int:
        state.tokens.append(0)
        try:
            return super()._longest_hit(state)
        finally:
            state.tokens.pop()


class KeepsTheLastPositionTwice(ReferenceManager):
    """The cap is applied to the count alone: the last token is said to be left, in a block that is shared."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        size = self.spec.block_size
        padded = [*tokens, 0] if tokens and len(tokens) % size == 0 else list(tokens)
        cached = super().begin(seq, padded, namespace)
        del self.sequences[seq].tokens[len(tokens) :]
        return min(cached, max(0, len(tokens) - 1))


class LosesTheCappedBlock(ReferenceManager):
    """A block that the cap leaves to be computed again counts as published already."""

    def _admit(self, seq: str, state: SequenceState) -> int:
        cached = super()._admit(seq, state)
        size = self.spec.block_size
        if cached and cached + size == len(state.tokens):
            state.published += 1
        return cached


class EmptyKeyHits(ReferenceManager):
    """The key of a one-token prompt is empty once the last token is taken off, and the cap is forgotten."""

    def _longest_hit(self, state: SequenceState) -> int:
        if len(state.tokens) != 1:
            return super()._longest_hit(state)
        state.tokens.append(0)
        try:
            return super()._longest_hit(state)
        finally:
            state.tokens.pop()


def _whole_prompts(subject: Subject) -> str | None:
    for length in (1, 2, 3, 4):
        if wrong := expected_hit(Scene(subject), PROMPT[:length]):
            return wrong
    return None


def _whole_table(subject: Subject) -> str | None:
    """A prompt that is cached as a whole has as many blocks as it needs."""
    scene = Scene(subject)
    resubmitted(scene, [1, 2, 3, 4])
    table = scene.manager.block_table("again")
    return None if len(table) == 2 else f"{len(table)} blocks for 4 tokens"


def _one_token(subject: Subject) -> str | None:
    return expected_hit(Scene(subject, block_size=1), [5])


def _capped_then_longer(subject: Subject) -> str | None:
    """A capped prompt whose cached last block is gone is computed, grows, and must be hit as a whole."""
    scene = Scene(subject, num_blocks=4)
    scene.begin("a", [1, 2, 3, 4])
    scene.step()
    scene.free("a")
    scene.begin("b", [9, 9, 9, 9, 9])  # takes the last block of a
    scene.step()
    scene.free("b")
    scene.begin("c", [1, 2, 3, 4])
    scene.step()
    scene.free("c")
    cached = scene.begin("d", [1, 2, 3, 4, 5])
    scene.step()
    return scene.said() or (None if cached == 4 else f"{cached} of 4 tokens are cached")


# -- P8: stale hits ----------------------------------------------------------------------------------------------------


class HitsEvictedBlocks(ReferenceManager):
    """The map keeps its entry when the block is handed out again, until the block is published anew."""

    def _take(self) -> int:
        return self.pool.take()

    def _publish_block(self, prefix: Prefix, group: int, block: int) -> int:
        self.prefixes.forget(block)
        return super()._publish_block(prefix, group, block)


class KeepsTheBackPointer(ReferenceManager):
    """An evicted block still points at its old prefix, and takes the new owner's entry with it later."""

    def _take(self) -> int:
        block = self.pool.take()
        if block in self.prefixes:
            prefix, group = self.prefixes.places[block]
            prefix.blocks.pop(group, None)
            self.counters["evictions"] += 1
        return block


class ResetsNothing(ReferenceManager):
    """Everything cached outlives a reset."""

    def reset(self) -> None:
        """Forget nothing."""


class RemembersLookups(ReferenceManager):
    """What a refused begin had found is used by the next begin of the same tokens, whatever happened meanwhile."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.found: dict[tuple[object, ...], list[list[int]]] = {}

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        key = (namespace, *tokens)
        try:
            cached = super().begin(seq, tokens, namespace)
        except OutOfBlocks:
            state = SequenceState(namespace, list(tokens), self._empty_tables())
            self._extend_chain(state, len(tokens))
            hit = self._longest_hit(state)
            self.found[key] = [self._hit_table(state, group, hit) for group in range(len(self.spec.groups))]
            self._drop_chain(state, 0)
            raise
        earlier = self.found.pop(key, None)
        if not earlier or not earlier[0] or cached:
            return cached
        for table, old in zip(self.sequences[seq].tables, earlier, strict=True):
            for index, block in enumerate(old):
                if block not in (HOLE, table[index]) and self.pool.references[block] > 0:
                    self.pool.share(block)
                    self._release(table[index])
                    table[index] = block
                    cached = (index + 1) * self.spec.block_size
        return cached


class CountsAFreshBlock(ReferenceManager):
    """The first new block after a hit is said to be computed."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        cached = super().begin(seq, tokens, namespace)
        further = cached + self.spec.block_size
        return further if cached and further < len(tokens) else cached


def _evicted(subject: Subject) -> str | None:
    """A cached prompt is evicted by allocation and asked for again; then a newer one, twice."""
    scene = Scene(subject, num_blocks=4)
    for prompt in ([1, 2, 3, 4, 5], [6, 7, 8, 9, 6, 7, 8], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]):
        scene.begin("s", prompt)
        scene.step()
        scene.free("s")
    cached = scene.begin("s", [1, 2, 3, 4, 5])
    scene.step()
    return scene.said() or (None if cached == 4 else f"{cached} of 4 tokens are cached")


def _points_back(subject: Subject) -> str | None:
    """A block that lost its key becomes another's tail, while its old content is computed in another block."""
    scene = Scene(subject, num_blocks=5)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.free("a")
    scene.begin("b", [5, 5, 5, 5])
    scene.begin("c", [6, 6, 6, 6, 6])
    scene.step()
    scene.free("b")
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.free("c")
    scene.free("a")
    scene.begin("d", [8, 8, 8])
    scene.step()
    cached = scene.begin("a", [1, 2, 3])
    return None if cached == 2 else f"{cached} of 2 tokens are cached"


def _reset(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", PROMPT)
    scene.step()
    scene.manager.reset()
    cached = scene.begin("b", PROMPT)
    return f"{cached} tokens are hit after a reset" if cached else None


def _looked_up_before(subject: Subject) -> str | None:
    """A refused begin; what it had found is evicted and in use by another when it is begun again."""
    scene = Scene(subject, num_blocks=5)
    scene.begin("a", [1, 2, 3, 4])
    scene.step()
    scene.free("a")
    scene.begin("b", [9, 9, 9, 9, 9])
    scene.step()
    if not scene.refused(scene.begin, "c", [1, 2, 3, 4, 5]):
        scene.free("c")
    scene.begin("d", [8, 8, 8, 8])
    scene.step()
    scene.free("b")
    scene.begin("c", [1, 2, 3, 4, 5])
    scene.step()
    return scene.said()


def _longer_than_cached(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.begin("b", PROMPT)
    scene.step()
    return scene.said()


# -- P10: published before it is valid ---------------------------------------------------------------------------------


class PublishesAtBegin(ReferenceManager):
    """A prompt may be hit before anything of it is computed."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        cached = super().begin(seq, tokens, namespace)
        self._publish_all(self.sequences[seq])
        return cached

    def _publish_all(self, state: SequenceState) -> None:
        if state.chain:
            committed, state.committed = state.committed, len(state.tokens)
            self._publish(state)
            state.committed = committed


class PublishesWholePromptAtFirstChunk(ReferenceManager):
    """The first chunk publishes what later ones will compute."""

    def commit(self, seq: str, length: int) -> None:
        super().commit(seq, len(self._running(seq).tokens) if length else length)


class PublishesWhatIsLoading(ReferenceManager):
    """A sequence that is swapped in may be hit at once, with what it had computed and what it had not."""

    def swap_in(self, seq: str) -> None:
        super().swap_in(seq)
        state = self.sequences[seq]
        if state.chain:
            committed, state.committed = state.committed, len(state.tokens)
            self._publish(state)
            state.committed = committed


class PublishesDrafts(PublishesAtBegin):
    """Drafts may be hit before they are accepted."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        return ReferenceManager.begin(self, seq, tokens, namespace)

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        super().extend(seq, tokens, speculative)
        if speculative:
            self._publish_all(self.sequences[seq])


def _aborted(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", PROMPT)
    scene.free("a")
    scene.begin("b", PROMPT)
    scene.step()
    return scene.said()


def _half_computed(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", PROMPT)
    scene.step(a=3)
    scene.begin("b", PROMPT)
    scene.step(a=3)
    return scene.said()


def _half_loaded(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=12, host_blocks=8)
    scene.begin("a", PROMPT)
    scene.step(a=3)
    scene.swap_out("a")
    scene.step()
    scene.swap_in("a")
    scene.step(a=3)
    scene.begin("b", PROMPT)
    scene.step(a=3)
    return scene.said()


def _drafts_hit(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.extend("a", 4, 5, speculative=True)
    scene.truncate("a", 3)
    scene.begin("b", [1, 2, 3, 4, 5])
    scene.step()
    return scene.said()


# -- P11: keys and blocks that do not belong together ------------------------------------------------------------------


class ComparesFirstTokens(ReferenceManager):
    """A block is found by its first token: prefixes that part in the middle of a block are one."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        hold = self.prefixes.hold

        def coarse(parent: Prefix | None, content: Content) -> Prefix:
            return hold(parent, content[:1] if isinstance(content, tuple) else content)

        self.prefixes.hold = coarse  # type: ignore[method-assign]


class ShiftsByOne(ReferenceManager):
    """Keys of the prompt are stored with the blocks one further on."""

    def _publish(self, state: SequenceState) -> None:
        self._extend_chain(state, state.committed)
        full = state.committed // self.spec.block_size
        for index in range(state.published, full - 1):
            for group, table in enumerate(state.tables):
                if HOLE not in (table[index], table[index + 1]) and table[index + 1] not in self.prefixes:
                    self.prefixes.publish(state.chain[index + 1], group, table[index + 1])
        state.published = max(state.published, full)


class SplitsTheWrongBlock(ReferenceManager):
    """Where a prompt ends at a block's end, the hit is one block longer in the table than in the keys."""

    def _hit_table(self, state: SequenceState, group: int, hit: int) -> list[int]:
        table = super()._hit_table(state, group, hit)
        if hit >= 2 and HOLE not in table and len(state.tokens) % self.spec.block_size == 1:
            table[-1] = table[-2]
        return table


class KeepsTheCallersList(ReferenceManager):
    """Tokens are not copied: what the caller does to its list later changes what the keys say."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        cached = super().begin(seq, tokens, namespace)
        if isinstance(tokens, list):
            state = self.sequences[seq]
            self._drop_chain(state, cached // self.spec.block_size + 1)
            state.tokens = tokens
        return cached


class ReturnsTheParent(ReferenceManager):
    """A lookup returns blocks of the match's parent for those of the match."""

    def _hit_table(self, state: SequenceState, group: int, hit: int) -> list[int]:
        table = super()._hit_table(state, group, hit)
        if len(table) >= 2 and HOLE not in table:
            return [table[0], *table[:-1]]
        return table


def _parting_ways(subject: Subject) -> str | None:
    """Prompts that part in the middle of a block, at its start, and at its end."""
    for cut in (1, 2, 3, 4, 5):
        scene = Scene(subject, num_blocks=16)
        scene.begin("a", PROMPT)
        scene.step()
        scene.begin("b", [*PROMPT[:cut], *(9 for _ in PROMPT[cut:]), 9])
        scene.step()
        scene.begin("c", PROMPT)
        scene.step()
        scene.begin("d", PROMPT[:5])
        scene.step()
        if scene.said():
            return scene.said()
    return None


def _rewritten(subject: Subject) -> str | None:
    scene = Scene(subject)
    tokens: list[Any] = [1, 2, 3, 4, 5]
    scene.begin("a", tokens)
    tokens[:] = [9, 9, 9, 9, 9]
    scene.step()
    scene.begin("b", [9, 9, 9, 9, 9])
    scene.step()
    return scene.said()


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "P1", "hash-without-lineage", "prefix", 2,
        "a block's key depends on its own tokens only, or on the wrong parent",
        ("vllm-project/vllm-ascend#12012", "sgl-project/sglang#26177", "jd-opensource/xllm@d5cc2a90",
         "vllm-project/vllm#26296", "ovg-project/kvcached#451"),
    ),
    Fault("P1a", "keys have no parent", with_manager("P1a", HashesWithoutLineage), _equal_second_blocks,
          needs=("prefix caching",)),
    Fault("P1b", "the parent of what follows a hit is the root", with_manager("P1b", SkipsCachedParents),
          _continued_hit, needs=("prefix caching",)),
    Fault("P1c", "keys made after the prompt differ from those of a prompt", with_manager("P1c", RestartsItsHash),
          _decoded_then_asked, needs=("prefix caching",)),
    Fault("P1d", "groups are keyed at different granularity", with_manager("P1d", HashesGroupsUnevenly), _two_groups,
          needs=("prefix caching", "groups")),
    Fault("P1e", "parent and child extend one list of keys", with_manager("P1e", SharesItsParentList), _forked_keys,
          needs=("prefix caching", "fork")),
    FaultClass(
        "P5", "collision-unverified", "prefix", 4,
        "a hit is accepted on an equal hash without comparing tokens and parents",
        ("kvcache-ai/Mooncake#644", "vllm-project/vllm#12621", "openvinotoolkit/openvino.genai#3722",
         "vllm-project/vllm#54727", "vllm-project/vllm#17088"),
    ),
    Fault("P5a", "a short hash, and no comparison", with_manager("P5a", TrustsHashes), _many_prefixes,
          needs=("prefix caching",)),
    Fault("P5b", "the last block is compared, its parents are not", with_manager("P5b", VerifiesTheLastBlock),
          _many_prefixes, needs=("prefix caching",)),
    FaultClass(
        "P6", "full-hit-nothing-left", "prefix", 1,
        "a prompt that is cached as a whole leaves nothing to compute, or leaves it wrong",
        ("sgl-project/sglang#980", "vllm-project/vllm#11186", "GeeeekExplorer/nano-vllm#144", "ModelTC/lightllm#477",
         "EricLBuehler/mistral.rs#1377", "ggml-org/llama.cpp#3588"),
    ),
    Fault("P6a", "a full hit is not capped", with_manager("P6a", HitsWholePrompts), _whole_prompts,
          needs=("prefix caching",)),
    Fault("P6b", "the cap lowers the count but not the table", with_manager("P6b", KeepsTheLastPositionTwice),
          _whole_table, needs=("prefix caching",)),
    Fault("P6c", "a block left by the cap is never published again", with_manager("P6c", LosesTheCappedBlock),
          _capped_then_longer, needs=("prefix caching",)),
    Fault("P6d", "a one-token prompt is all hit", with_manager("P6d", EmptyKeyHits), _one_token,
          needs=("prefix caching",)),
    FaultClass(
        "P8", "stale-hit", "prefix", 3,
        "the map still answers for content that is gone",
        ("LMCache/LMCache#2979", "turboderp-org/exllamav2@89b4af6", "vllm-project/vllm#5364",
         "openvinotoolkit/openvino.genai#3489", "vllm-project/vllm#42125", "InternLM/lmdeploy#4917",
         "vllm-project/vllm#35157", "vllm-project/vllm#18957", "sgl-project/sglang#29354"),
    ),
    Fault("P8a", "a block is handed out again without removing its key", with_manager("P8a", HitsEvictedBlocks),
          _evicted, needs=("prefix caching",)),
    Fault("P8b", "the key is removed but the block still points at it", with_manager("P8b", KeepsTheBackPointer),
          _points_back, needs=("prefix caching",)),
    Fault("P8c", "a reset keeps entries", with_manager("P8c", ResetsNothing), _reset,
          needs=("prefix caching", "reset")),
    Fault("P8d", "an earlier lookup's result is used after eviction", with_manager("P8d", RemembersLookups),
          _looked_up_before, needs=("prefix caching",)),
    Fault("P8e", "a fresh block is said to be computed", with_manager("P8e", CountsAFreshBlock), _longer_than_cached,
          needs=("prefix caching",)),
    FaultClass(
        "P10", "published-before-valid", "prefix", 4,
        "a block may be hit before its K/V is final",
        ("huggingface/text-generation-inference#2489", "alibaba/rtp-llm@d296e9a67", "vllm-project/vllm#29387",
         "vllm-project/vllm#34616", "RBLN-SW/vllm-rbln#525", "vllm-project/vllm#18668"),
    ),
    Fault("P10a", "a prompt is published at allocation", with_manager("P10a", PublishesAtBegin), _aborted,
          needs=("prefix caching", "abort")),
    Fault("P10b", "the first chunk publishes the whole prompt",
          with_manager("P10b", PublishesWholePromptAtFirstChunk), _half_computed, needs=("prefix caching",)),
    Fault("P10c", "what is loaded is published with what was never computed",
          with_manager("P10c", PublishesWhatIsLoading), _half_loaded, needs=("prefix caching", "swap")),
    Fault("P10d", "drafts are published before they are accepted", with_manager("P10d", PublishesDrafts), _drafts_hit,
          needs=("prefix caching", "truncate")),
    FaultClass(
        "P11", "key-value-misalignment", "prefix", 3,
        "stored keys and stored blocks do not correspond",
        ("sgl-project/sglang#16521", "sgl-project/sglang#10846", "mlc-ai/mlc-llm#2664", "sgl-project/sglang#7",
         "huggingface/text-generation-inference#3067", "mlc-ai/mlc-llm#2798", "sgl-project/mini-sglang@94fe255"),
    ),
    Fault("P11a", "prefixes that part inside a block are taken for one", with_manager("P11a", ComparesFirstTokens),
          _parting_ways, needs=("prefix caching",)),
    Fault("P11b", "keys are stored with the blocks one further on", with_manager("P11b", ShiftsByOne), _parting_ways,
          needs=("prefix caching",)),
    Fault("P11c", "a split at a block's end splits the wrong block", with_manager("P11c", SplitsTheWrongBlock),
          _parting_ways, needs=("prefix caching",)),
    Fault("P11d", "keys follow a list that the caller rewrites", with_manager("P11d", KeepsTheCallersList),
          _rewritten, needs=("prefix caching",)),
    Fault("P11e", "a lookup returns the parent's block", with_manager("P11e", ReturnsTheParent), _parting_ways,
          needs=("prefix caching",)),
)  # fmt: skip
