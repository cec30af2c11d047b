"""Faults of the allocator: blocks that are given twice, too early, never, or in the wrong number."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.errors import OutOfBlocks
from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.scene import Scene
from kvbench.interface import HOLE, PoolSpec
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.sequence import Place, SequenceState
from kvbench.subject import Subject

# -- A1: given back twice ----------------------------------------------------------------------------------------------


class GivesRingBackTwice(ReferenceManager):
    """Blocks that a window let go of are remembered in its ring, and given back once more at the end."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.rings: dict[int, list[int]] = {}

    def _release_behind_windows(self, state: SequenceState) -> None:
        before = state.blocks()
        super()._release_behind_windows(state)
        gone = [block for block in before if block not in state.blocks()]
        self.rings.setdefault(id(state), []).extend(gone)

    def free(self, seq: str) -> None:
        state = self._find(seq)
        super().free(seq)
        self.pool.unused.extend(block for block in self.rings.pop(id(state), []) if block in self.pool.unused)


class FreesAgain(ReferenceManager):
    """A second free of a sequence is accepted and gives its last block back once more."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.gone: dict[str, list[int]] = {}

    def free(self, seq: str) -> None:
        if seq in self.gone and seq not in self.sequences:
            self.pool.unused.extend(self.gone.pop(seq))
            return
        state = self.sequences.get(seq)
        if state is not None and state.place is Place.RUNNING:
            self.gone[seq] = state.blocks()[-1:]
        super().free(seq)


class AppendsTheCopy(ReferenceManager):
    """Copy-on-write appends the new block; the one that was let go of stays in the table before it."""

    def _replace_tails(self, tails: list[list[int]], grow: int, tables: list[list[int]]) -> None:
        super()._replace_tails(tails, grow, tables)
        for copy in self.copies:
            for table in tails:
                if copy.target in table:
                    place = table.index(copy.target)
                    table[place : place + 1] = [copy.source, copy.target]


def _ring(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=6, windows=(2,), prefix_caching=False)
    scene.begin("a", [1, 2, 3, 4, 5, 6])
    scene.step()
    scene.free("a")
    return scene.leaked


def _twice(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.free("a")
    try:
        scene.manager.free("a")
    except Exception:
        return None
    return "a second free is accepted"


def _family(subject: Subject) -> str | None:
    """Parent and child write different tokens into what was one block."""
    scene = Scene(subject)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.fork("a", "b")
    scene.extend("a", 4)
    scene.extend("b", 5)
    scene.step()
    scene.step()
    scene.free("a")
    scene.begin("c", [7, 8, 9])
    scene.step()
    scene.free("b")
    scene.free("c")
    return scene.said() or scene.leaked


# -- A2: given back too early ------------------------------------------------------------------------------------------


class ForgetsOtherHolders(ReferenceManager):
    """Whoever lets go of a block frees it."""

    def _release(self, block: int) -> None:
        self.pool.references[block] = 1
        super()._release(block)


class FreesBorrowedPrefix(ReferenceManager):
    """A finished sequence frees the prefix that it had hit, too."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.borrowed: dict[str, int] = {}

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        cached = super().begin(seq, tokens, namespace)
        self.borrowed[seq] = cached // self.spec.block_size
        return cached

    def free(self, seq: str) -> None:
        state = self._find(seq)
        if state.place is Place.RUNNING and state.tables:
            for block in state.tables[0][: self.borrowed.get(seq, 0)]:
                if block != HOLE:
                    self.pool.references[block] = 1
        super().free(seq)


class FreesWhatTheHostHolds(ReferenceManager):
    """Blocks that were copied to the host are freed on the device, whoever else reads them."""

    def swap_out(self, seq: str) -> None:
        held = self.sequences[seq].blocks() if seq in self.sequences else []
        super().swap_out(seq)
        for block in held:
            if self.pool.references[block] > 0 and block not in self.prefixes:
                self.pool.references[block] = 0
                self.pool.unused.append(block)


def _third_writes(subject: Subject) -> str | None:
    """One of two holders lets go, a third sequence writes, the other holder reads."""
    scene = Scene(subject, num_blocks=5)
    scene.begin("a", [1, 2, 3, 4, 5])
    scene.step()
    scene.begin("b", [1, 2, 3, 4, 6])
    scene.step()
    scene.free("b")
    scene.refused(scene.begin, "c", [7, 8, 9, 7, 8])
    scene.step()
    return scene.said()


def _half_swapped(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=6, host_blocks=6, prefix_caching=False)
    scene.begin("a", [1, 2, 3, 4])
    scene.step()
    scene.fork("a", "b")
    scene.swap_out("b")
    scene.step()
    scene.begin("c", [7, 8, 9, 7, 8, 9, 7, 8])
    scene.step()
    return scene.said()


# -- A3: never given back ----------------------------------------------------------------------------------------------


class LeaksHitsOfRefusedBegin(ReferenceManager):
    """A refused begin keeps the pin on what it had hit."""

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        try:
            return super().begin(seq, tokens, namespace)
        except OutOfBlocks:
            for block in list(self.pool.idle)[:1]:
                self.pool.share(block)
            raise


class LeaksBlocksOfRefusedExtend(ReferenceManager):
    """Blocks are taken one by one, and kept when the pool runs out midway."""

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        try:
            super().extend(seq, tokens, speculative)
        except OutOfBlocks:
            if self.pool.free:
                self._take()
            raise


class LeaksBetweenChunks(ReferenceManager):
    """A sequence that is freed half prefilled leaves its last block behind."""

    def free(self, seq: str) -> None:
        state = self._find(seq)
        if state.place is Place.RUNNING and 0 < state.committed < len(state.tokens):
            self.pool.references[state.blocks()[-1]] += 1
        super().free(seq)


class PreemptsFirstGroupOnly(ReferenceManager):
    """A preempted sequence keeps the blocks of all groups but the first."""

    def preempt(self, seq: str) -> None:
        for table in self._running(seq).tables[1:]:
            for block in table:
                if block != HOLE:
                    self.pool.references[block] += 1
        super().preempt(seq)


class DropsTableOfRefusedExtend(ReferenceManager):
    """A refused extend takes the last block from the running sequence."""

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        try:
            super().extend(seq, tokens, speculative)
        except OutOfBlocks:
            state = self.sequences[seq]
            self._release_tails(state, max(0, len(state.tables[0]) - 1))
            raise


class LookupTakesASlot(ReferenceManager):
    """A lookup that hits takes a block of its own, which nobody gives back."""

    def _longest_hit(self, state: SequenceState) -> int:
        hit = super()._longest_hit(state)
        if hit and self.pool.unused:
            self.pool.take()
        return hit


def _refused_begin(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=4)
    scene.begin("a", [1, 2, 3, 4])
    scene.step()
    scene.free("a")
    if not scene.refused(scene.begin, "b", [1, 2, *range(10, 20)]):
        return "a begin that cannot fit is admitted"
    return scene.leaked


def _refused_extend(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=3)
    scene.begin("a", [1, 2, 3])
    scene.step()
    table = list(scene.manager.block_table("a"))
    if not scene.refused(scene.manager.extend, "a", [4] * 9):
        return "an extend that cannot fit is admitted"
    if list(scene.manager.block_table("a")) != table:
        return "the table changed by a refused extend"
    scene.free("a")
    return scene.leaked


def _freed_between_chunks(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", [1, 2, 3, 4, 5, 6])
    scene.step(a=3)
    scene.free("a")
    return scene.leaked


def _two_groups_preempted(subject: Subject) -> str | None:
    scene = Scene(subject, windows=(None, None))
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.preempt("a")
    scene.free("a")
    return scene.leaked


def _hit_and_freed(subject: Subject) -> str | None:
    scene = Scene(subject)
    for seq in ("a", "b"):
        scene.begin(seq, [1, 2, 3])
        scene.step()
        scene.free(seq)
    return scene.leaked


# -- A5: the wrong number ----------------------------------------------------------------------------------------------


class CountsFullBlocksOnly(ReferenceManager):
    """The part of a block at the end of a sequence is not counted."""

    def blocks_for(self, length: int) -> int:
        return max(1, length // self.spec.block_size)


class RefusesWhatTheTailHolds(ReferenceManager):
    """Asks for a block although the last one has room."""

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        if len(self._running(seq).tokens) % self.spec.block_size and tokens:
            self._require(seq, 1)
        super().extend(seq, tokens, speculative)


class BudgetsInTokens(ReferenceManager):
    """Admits what fits by tokens, then runs out of blocks."""

    def _require(self, seq: str, needed: int) -> None:
        size = self.spec.block_size
        held = sum(len(state.tokens) for state in self.sequences.values() if state.place is Place.RUNNING)
        if needed * size > self.spec.num_blocks * size - held + size - 1:
            super()._require(seq, needed)


class EmptyExtendTakesABlock(ReferenceManager):
    """No token more at the end of a block takes the next one all the same."""

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        state = self._running(seq)
        if not tokens and state.tokens and len(state.tokens) % self.spec.block_size == 0 and self.pool.free:
            for table in state.tables:
                if len(table) == self.blocks_for(len(state.tokens)) and self.pool.free:
                    table.append(self._take())
        super().extend(seq, tokens, speculative)


class TruncatesOneBlockTooMany(ReferenceManager):
    """The block that the last kept token begins is released with the dropped ones."""

    def truncate(self, seq: str, length: int) -> None:
        super().truncate(seq, length)
        state = self.sequences[seq]
        if length > self.spec.block_size and length % self.spec.block_size == 1:
            self._release_tails(state, self.blocks_for(length) - 1)


def _grown(subject: Subject) -> str | None:
    """Growth by one token at a time over several blocks, in a pool that just fits."""
    scene = Scene(subject, num_blocks=3, block_size=2, prefix_caching=False)
    scene.begin("a", [1])
    scene.step()
    for token in range(2, 7):
        if scene.refused(scene.extend, "a", token):
            return f"token {token} is refused though it fits"
        if len(scene.manager.block_table("a")) != -(-token // 2):
            return f"{len(scene.manager.block_table('a'))} blocks for {token} tokens"
        scene.step()
    return scene.said()


def _many_small(subject: Subject) -> str | None:
    """Short sequences each take a block; what is left is less than the tokens say."""
    scene = Scene(subject, num_blocks=3, block_size=4, prefix_caching=False)
    for seq in "abc":
        scene.begin(seq, [1])
        scene.step()
    return None if scene.refused(scene.begin, "d", [1]) else "a fourth sequence gets a block of a full pool"


def _nothing_more(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", [1, 2])
    scene.step()
    free = scene.manager.free_blocks
    scene.manager.extend("a", [])
    return None if scene.manager.free_blocks == free else "no token more takes a block"


def _cut_back(subject: Subject) -> str | None:
    scene = Scene(subject, prefix_caching=False)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.extend("a", 4, 5, speculative=True)
    scene.step(commit=False)
    scene.truncate("a", 3)
    scene.begin("b", [9, 9, 9])
    scene.step()
    return scene.said()


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "A1", "double-free-alias", "allocator", 2,
        "freeing does not check the reference count or repeated ids, so that a block gets two owners",
        (
            "vllm-project/vllm#3347", "vllm-project/vllm@c128c2ed0", "sgl-project/sglang#18694",
            "sgl-project/sglang#13501", "sgl-project/sglang#18822", "EricLBuehler/mistral.rs@722e46e4f",
            "ModelEngine-Group/unified-cache-management#1053", "vllm-project/vllm-ascend#14301",
            "alibaba/rtp-llm@600f8684d",
        ),
    ),
    Fault("A1a", "a window's released blocks are given back again at the end",
          with_manager("A1a", GivesRingBackTwice), _ring, needs=("windows",)),
    Fault("A1b", "a second free of a sequence is accepted", with_manager("A1b", FreesAgain), _twice),
    Fault("A1c", "copy-on-write appends the new block instead of replacing the tail",
          with_manager("A1c", AppendsTheCopy), _family, needs=("fork",)),
    FaultClass(
        "A2", "premature-free", "allocator", 2,
        "one holder's release frees a block that another still reads",
        ("Avarok-Cybersecurity/atlas#373", "sgl-project/sglang#31662", "sgl-project/sglang#29352",
         "sgl-project/sglang#24226"),
    ),
    Fault("A2a", "a release sets the reference count to zero", with_manager("A2a", ForgetsOtherHolders), _third_writes),
    Fault("A2b", "a finished sequence frees the prefix that it borrowed",
          with_manager("A2b", FreesBorrowedPrefix), _third_writes, needs=("prefix caching",)),
    Fault("A2c", "the device copy is freed because a host copy exists",
          with_manager("A2c", FreesWhatTheHostHolds), _half_swapped, needs=("fork", "swap")),
    FaultClass(
        "A3", "leak-on-unhappy-path", "allocator", 2,
        "what was taken before a failure or an abort is not given back",
        (
            "jd-opensource/xllm#1146", "inference-sim/inference-sim#200", "inference-sim/inference-sim#1061",
            "huggingface/transformers#46117", "sgl-project/sglang#16067", "sgl-project/sglang#2238",
            "sgl-project/sglang#1858", "vllm-project/vllm#10013", "vllm-project/vllm#46283",
            "vllm-project/vllm-ascend#16662", "NVIDIA/TensorRT-LLM#15018",
        ),
    ),
    Fault("A3a", "a refused begin keeps the pin on its prefix hit",
          with_manager("A3a", LeaksHitsOfRefusedBegin), _refused_begin, needs=("prefix caching",)),
    Fault("A3b", "blocks taken one by one are kept when the pool runs out midway",
          with_manager("A3b", LeaksBlocksOfRefusedExtend), _refused_extend),
    Fault("A3c", "an abort between prefill chunks leaves a block behind",
          with_manager("A3c", LeaksBetweenChunks), _freed_between_chunks),
    Fault("A3d", "preemption frees the first group only",
          with_manager("A3d", PreemptsFirstGroupOnly), _two_groups_preempted, needs=("preempt", "groups")),
    Fault("A3e", "a refused extend takes a block from the running sequence",
          with_manager("A3e", DropsTableOfRefusedExtend), _refused_extend),
    Fault("A3f", "a lookup takes a private block", with_manager("A3f", LookupTakesASlot), _hit_and_freed,
          needs=("prefix caching",)),
    FaultClass(
        "A5", "block-boundary-miscount", "allocator", 2,
        "the number of blocks that are needed is wrong at a boundary",
        (
            "sgl-project/sglang#6671", "sgl-project/sglang#7397", "FlashML-org/FreeToken#367",
            "vllm-project/vllm#6849", "inference-sim/inference-sim#492", "vllm-project/vllm#7380",
            "sgl-project/sglang#4914", "jd-opensource/xllm#639",
        ),
    ),
    Fault("A5a", "the partial block at the end is not counted", with_manager("A5a", CountsFullBlocksOnly), _grown),
    Fault("A5b", "a token is refused although the last block has room",
          with_manager("A5b", RefusesWhatTheTailHolds), _grown),
    Fault("A5c", "what is admitted is counted in tokens, what is taken in blocks",
          with_manager("A5c", BudgetsInTokens), _many_small),
    Fault("A5d", "an empty append takes a block", with_manager("A5d", EmptyExtendTakesABlock), _nothing_more),
    Fault("A5e", "releasing rounds the first private position the wrong way",
          with_manager("A5e", TruncatesOneBlockTooMany), _cut_back, needs=("truncate",)),
)  # fmt: skip
