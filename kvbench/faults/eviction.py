"""Faults of eviction: what is in use goes, what is not in use stays, and the wrong block goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.scene import Scene
from kvbench.interface import HOLE, PoolSpec
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.sequence import Place, SequenceState, held_blocks
from kvbench.subject import Subject

# -- E1: what is in use is evicted -------------------------------------------------------------------------------------


class LocksParentsOnly(ReferenceManager):
    """A hit locks the blocks before the last one it found."""

    def _unlocked(self, hits: list[int]) -> list[int]:
        return hits[-1:]

    def _admit(self, seq: str, state: SequenceState) -> int:
        cached = super()._admit(seq, state)
        for block in self._unlocked(state.tables[0][: cached // self.spec.block_size]):
            if block != HOLE and self.pool.references[block] == 1:
                self.pool.references[block] = 0
                self.pool.idle[block] = None
        return cached

    def _release(self, block: int) -> None:
        if self.pool.references[block] > 0:
            super()._release(block)


class LocksTheRoot(LocksParentsOnly):
    """The handle of a hit names the root: nothing of it is locked."""

    def _unlocked(self, hits: list[int]) -> list[int]:
        return hits


class EvictsItsOwnHits(ReferenceManager):
    """A begin takes its new blocks before it locks those that it hit, and may take these."""

    def _admit(self, seq: str, state: SequenceState) -> int:
        known = len(state.chain)
        self._extend_chain(state, len(state.tokens))
        hit = self._longest_hit(state)
        hits = held_blocks([self._hit_table(state, group, hit) for group in range(len(self.spec.groups))])
        grow = self.blocks_for(len(state.tokens)) - hit
        idle = [block for block in hits if self.pool.references[block] == 0]
        self._drop_chain(state, known)
        if not idle or grow <= len(self.pool.unused) or len(self.spec.groups) > 1:
            return super()._admit(seq, state)
        self._require(seq, grow)
        self._extend_chain(state, len(state.tokens))
        table = self._hit_table(state, 0, hit)
        fresh = [self._take() for _ in range(grow)]
        for block in table:
            self.pool.share(block)
        state.tables, state.committed, state.published = [[*table, *fresh]], hit * self.spec.block_size, hit
        return state.committed


class ReusesHostBlocks(ReferenceManager):
    """Host blocks of a sequence that is swapped out count as free once its device blocks are gone."""

    def swap_out(self, seq: str) -> None:
        super().swap_out(seq)
        for block in self.sequences[seq].blocks()[:1]:
            self.host.unused.append(block)


def _hit_under_pressure(subject: Subject) -> str | None:
    """A hit is running while another fills the pool."""
    scene = Scene(subject, num_blocks=6)
    scene.begin("a", [1, 2, 3, 4])
    scene.step()
    scene.free("a")
    scene.begin("b", [1, 2, 3, 4, 5])
    scene.step()
    scene.refused(scene.begin, "c", [7, 8, 9, 7, 8])
    scene.step()
    scene.refused(scene.extend, "c", 7, 8, 9)
    scene.step()
    return scene.said()


def _hit_in_a_full_pool(subject: Subject) -> str | None:
    """What is hit is all that could be evicted for the rest."""
    scene = Scene(subject, num_blocks=4)
    scene.begin("a", [1, 2, 3, 4])
    scene.step()
    scene.free("a")
    scene.begin("x", [9, 9, 9])
    scene.step()
    if not scene.refused(scene.begin, "b", [1, 2, 3, 4, 5, 6]):
        scene.step()
    return scene.said()


def _two_swapped(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=8, host_blocks=8, prefix_caching=False)
    for seq, tokens in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        scene.begin(seq, tokens)
        scene.step()
        scene.swap_out(seq)
        scene.step()
    scene.swap_in("a")
    scene.step()
    return scene.said()


# -- E2: locks that do not balance -------------------------------------------------------------------------------------


class ReleasesTheParentsToo(ReferenceManager):
    """Freeing a forked child unlocks the first block once more."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.children: set[str] = set()

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self.children.add(child)

    def free(self, seq: str) -> None:
        state = self._find(seq)
        first = state.blocks()[0] if state.place is Place.RUNNING and state.blocks() else None
        super().free(seq)
        if seq in self.children and first is not None and self.pool.references[first] > 0:
            self._release(first)
        self.children.discard(seq)


class LeaksLocksOnResume(ReferenceManager):
    """A resumed sequence locks what it hits twice, and unlocks it once."""

    def resume(self, seq: str) -> int:
        cached = super().resume(seq)
        for block in self.sequences[seq].tables[0][: cached // self.spec.block_size]:
            if block != HOLE:
                self.pool.share(block)
        return cached


class CountsHitsAsTaken(ReferenceManager):
    """The counter of free blocks goes down by a prompt's length at begin and up by what was not shared at free."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.drift = 0

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        cached = super().begin(seq, tokens, namespace)
        self.drift += cached // self.spec.block_size
        return cached

    @property
    def free_blocks(self) -> int:
        """Counted, and off by what was ever hit."""
        return self.pool.free - self.drift


class UnlocksWithTheNextBegin(ReferenceManager):
    """What a freed sequence held is unlocked when the next prompt comes, after that has been refused."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.waiting: list[SequenceState] = []

    def free(self, seq: str) -> None:
        state = self._find(seq)
        self.waiting.append(state)
        del self.sequences[seq]

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        try:
            return super().begin(seq, tokens, namespace)
        finally:
            for state in self.waiting:
                self._release_all(state)
                self._drop_chain(state, 0)
            self.waiting = []


def _child_goes_first(subject: Subject) -> str | None:
    scene = Scene(subject, prefix_caching=False)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.fork("a", "b")
    scene.free("b")
    scene.begin("c", [7, 8, 9, 7, 8, 9, 7, 8, 9])
    scene.step()
    scene.step()
    return scene.said()


def _resumed(subject: Subject) -> str | None:
    scene = Scene(subject)
    scene.begin("a", [1, 2, 3, 4, 5])
    scene.step()
    scene.preempt("a")
    scene.resume("a")
    scene.step()
    scene.free("a")
    return scene.leaked


def _hit_and_freed(subject: Subject) -> str | None:
    scene = Scene(subject)
    for seq in ("a", "b"):
        scene.begin(seq, [1, 2, 3])
        scene.step()
        scene.free(seq)
    return scene.leaked


def _idle(subject: Subject) -> str | None:
    """After some steps in which nothing happens the pool is free."""
    scene = Scene(subject, num_blocks=2)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.free("a")
    for _ in range(3):
        scene.step()
    return scene.leaked


# -- E3: the wrong one first -------------------------------------------------------------------------------------------


class NeverRefreshes(ReferenceManager):
    """Evicts in the order of first release: a hit does not refresh."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.first: dict[int, int] = {}
        self.clock = 0

    def _release(self, block: int) -> None:
        super()._release(block)
        if block in self.pool.idle:
            self.clock += 1
            self.first.setdefault(block, self.clock)
            order = sorted(self.pool.idle, key=lambda idle: self.first.get(idle, 0))
            self.pool.idle = OrderedDict.fromkeys(order)

    def _take(self) -> int:
        block = super()._take()
        self.first.pop(block, None)
        return block


class RefreshesTheWholePath(ReferenceManager):
    """A hit of the beginning refreshes its cached continuations, too."""

    def _admit(self, seq: str, state: SequenceState) -> int:
        cached = super()._admit(seq, state)
        if cached:
            last = state.chain[cached // self.spec.block_size]
            below = [b for b in self.pool.idle if b in self.prefixes and self.prefixes.places[b][0].parent is last]
            for block in below:
                self.pool.idle.move_to_end(block)
        return cached


class RecencyFromTheStart(ReferenceManager):
    """What began last counts as used last, however long the others ran."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.begun: dict[int, int] = {}
        self.clock = 0

    def _admit(self, seq: str, state: SequenceState) -> int:
        cached = super()._admit(seq, state)
        self.clock += 1
        for block in state.blocks():
            self.begun[block] = self.clock
        return cached

    def _release(self, block: int) -> None:
        super()._release(block)
        if block in self.pool.idle:
            order = sorted(self.pool.idle, key=lambda idle: self.begun.get(idle, 0))
            self.pool.idle = OrderedDict.fromkeys(order)


class EvictsPrefixBeforeContinuation(ReferenceManager):
    """A sequence's first block counts as used before its last one."""

    def _release_tails(self, state: SequenceState, kept: int) -> None:
        if kept == 0 and len(state.tables) == 1:
            state.tables[0].reverse()
        super()._release_tails(state, kept)


class EvictsTheNewest(ReferenceManager):
    """The order of victims is reversed: what was used last goes first."""

    def _take(self) -> int:
        if not self.pool.unused and self.pool.idle:
            self.pool.idle.move_to_end(next(reversed(self.pool.idle)), last=False)
        return super()._take()


class LosesTouchOfTheRunning(ReferenceManager):
    """A hit of what another still runs leaves no trace: when both are gone the block is the oldest."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.touched: set[int] = set()

    def _admit(self, seq: str, state: SequenceState) -> int:
        cached = super()._admit(seq, state)
        for block in state.tables[0][: cached // self.spec.block_size]:
            if block != HOLE and self.pool.references[block] > 1:
                self.touched.add(block)
        return cached

    def _release(self, block: int) -> None:
        super()._release(block)
        if block in self.pool.idle and block in self.touched:
            self.touched.discard(block)
            self.pool.idle.move_to_end(block, last=False)


FILLER = "filler"


def _tight(subject: Subject, num_blocks: int) -> Scene:
    """A scene in which a sequence that is never computed holds four more blocks, until somebody asks."""
    scene = Scene(subject, num_blocks=num_blocks + 4)
    scene.manager.begin(FILLER, [99] * 8)
    return scene


def _cached(scene: Scene, *prompts: Sequence[int]) -> list[int]:
    """How much of each prompt is still cached, found out without computing or evicting anything."""
    scene.manager.free(FILLER)
    found = []
    for number, tokens in enumerate(prompts):
        found.append(int(scene.manager.begin(f"ask {number}", tokens)))
        scene.manager.free(f"ask {number}")
    return found


def _run(scene: Scene, seq: str, tokens: Sequence[int]) -> None:
    """Compute a prompt and let it go."""
    scene.begin(seq, tokens)
    scene.step()
    scene.free(seq)


def _told(found: list[int], expected: list[int]) -> str | None:
    return None if found == expected else f"{found} tokens of the prompts are left, not {expected}"


def _least_recent_first(subject: Subject) -> str | None:
    """Three prompts, the first used again; what a newcomer evicts is the second."""
    scene = _tight(subject, 6)
    for seq, first in zip("abca", (1, 2, 3, 1), strict=True):
        _run(scene, seq, [first, 2, 3])
    _run(scene, "d", [9] * 8)
    return _told(_cached(scene, [1, 2, 3], [2, 2, 3], [3, 2, 3]), [2, 0, 2])


def _last_block_first(subject: Subject) -> str | None:
    scene = _tight(subject, 4)
    _run(scene, "a", [1, 2, 3, 4, 5])
    _run(scene, "b", [9] * 6)
    return _told(_cached(scene, [1, 2, 3]), [2])


def _only_the_beginning(subject: Subject) -> str | None:
    """A prompt's beginning is used again, its continuation not: another prompt is younger than that."""
    scene = _tight(subject, 6)
    _run(scene, "a", [1, 2, 3, 4, 5])
    _run(scene, "b", [6, 7, 8])
    _run(scene, "c", [1, 2, 9])
    _run(scene, "d", [5] * 8)
    return _told(_cached(scene, [1, 2, 3, 4, 5], [6, 7, 8]), [2, 2])


def _long_runner(subject: Subject) -> str | None:
    """The one that began first is freed last."""
    scene = _tight(subject, 5)
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.begin("b", [4, 5, 6])
    scene.step()
    scene.free("b")
    scene.free("a")
    _run(scene, "c", [9] * 8)
    return _told(_cached(scene, [1, 2, 3], [4, 5, 6]), [2, 0])


def _touched_while_running(subject: Subject) -> str | None:
    scene = _tight(subject, 6)
    scene.begin("x", [7, 8, 9])
    scene.begin("a", [1, 2, 3])
    scene.step()
    scene.begin("b", [1, 2, 4])
    scene.step()
    for seq in "xab":
        scene.free(seq)
    _run(scene, "c", [5] * 10)
    return _told(_cached(scene, [1, 2, 3], [7, 8, 9]), [2, 0])


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "E1", "evict-pinned", "eviction", 2,
        "eviction takes blocks that are locked, in use or just stored",
        ("sgl-project/mini-sglang#46", "sgl-project/mini-sglang@8827b0f", "vllm-project/vllm#35846",
         "sgl-project/sglang#23696", "InternLM/lmdeploy#4700"),
    ),
    Fault("E1a", "a hit locks all blocks but the last one it found", with_manager("E1a", LocksParentsOnly),
          _hit_under_pressure, needs=("prefix caching",)),
    Fault("E1b", "a hit locks nothing", with_manager("E1b", LocksTheRoot), _hit_under_pressure,
          needs=("prefix caching",)),
    Fault("E1c", "a begin evicts what it has just hit", with_manager("E1c", EvictsItsOwnHits), _hit_in_a_full_pool,
          needs=("prefix caching",)),
    Fault("E1d", "host blocks of a swapped-out sequence are handed out", with_manager("E1d", ReusesHostBlocks),
          _two_swapped, needs=("swap",)),
    FaultClass(
        "E2", "lock-imbalance", "eviction", 3,
        "locking and unlocking are not symmetric",
        ("sgl-project/sglang#20049", "sgl-project/sglang#27038", "sgl-project/sglang#10637",
         "UbiquitousLearning/mllm#656"),
    ),
    Fault("E2a", "unlocking goes further than locking did", with_manager("E2a", ReleasesTheParentsToo),
          _child_goes_first, needs=("fork",)),
    Fault("E2b", "a resumed sequence locks its hits twice", with_manager("E2b", LeaksLocksOnResume), _resumed,
          needs=("prefix caching", "preempt")),
    Fault("E2c", "the counter of free blocks counts hits as taken", with_manager("E2c", CountsHitsAsTaken),
          _hit_and_freed, needs=("prefix caching",)),
    Fault("E2d", "locks are released by other traffic only", with_manager("E2d", UnlocksWithTheNextBegin), _idle),
    FaultClass(
        "E3", "recency-order", "eviction", 3,
        "victims are not chosen in the documented order",
        ("antonellof/ferrox#14", "ggml-org/llama.cpp#10126", "sgl-project/sglang#18843", "sgl-project/sglang#26615",
         "vllm-project/vllm#34576", "EricLBuehler/mistral.rs#2250"),
    ),
    Fault("E3a", "a hit does not refresh", with_manager("E3a", NeverRefreshes), _least_recent_first,
          needs=("documented eviction",)),
    Fault("E3b", "a hit refreshes continuations that it does not use", with_manager("E3b", RefreshesTheWholePath),
          _only_the_beginning, needs=("documented eviction",)),
    Fault("E3c", "recency is that of the start, not of the release", with_manager("E3c", RecencyFromTheStart),
          _long_runner, needs=("documented eviction",)),
    Fault("E3d", "a prefix is evicted before its continuation", with_manager("E3d", EvictsPrefixBeforeContinuation),
          _last_block_first, needs=("documented eviction",)),
    Fault("E3e", "victims are chosen newest first", with_manager("E3e", EvictsTheNewest), _least_recent_first,
          needs=("documented eviction",)),
    Fault("E3f", "a hit of what still runs is not remembered", with_manager("E3f", LosesTouchOfTheRunning),
          _touched_while_running, needs=("documented eviction",)),
)  # fmt: skip
