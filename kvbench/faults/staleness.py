"""Faults of the prefix cache over time: hits of what is gone, of what was never computed, or of another block."""

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
