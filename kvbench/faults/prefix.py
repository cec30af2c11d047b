"""Faults of a prefix cache's keys: hits of what is something else, or of all there is."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.scene import Scene
from kvbench.interface import PoolSpec
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
)  # fmt: skip
