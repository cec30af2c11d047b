"""Faults of windows and of swapping: blocks that leave too early, too late, or arrive somewhere else."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.faults.adapters import with_manager
from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.scene import Scene
from kvbench.interface import HOLE, Copy, PoolSpec, Tier
from kvbench.reference.blocks import BlockPool
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.sequence import SequenceState
from kvbench.subject import Subject

# -- W1: sliding windows -----------------------------------------------------------------------------------------------


class ReleasesTheFirstVisible(ReferenceManager):
    """The block that the oldest visible key lies in is let go of with those before it."""

    def first_visible(self, group: int, position: int) -> int:
        return super().first_visible(group, position + 1)


class ReleasesAhead(ReferenceManager):
    """Windows are moved when tokens are added, not when the step that reads what is behind them is over."""

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        super().extend(seq, tokens, speculative)
        state = self.sequences[seq]
        committed, state.committed = state.committed, len(state.tokens)
        self._release_behind_windows(state)
        state.committed = committed


class NeverReleases(ReferenceManager):
    """Nothing is let go of behind a window."""

    def _release_behind_windows(self, state: SequenceState) -> None:
        """Keep everything."""


class LeavesTheMapping(ReferenceManager):
    """A block that was let go of stays in the table."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.stale: dict[tuple[int, int, int], int] = {}

    def _release_behind_windows(self, state: SequenceState) -> None:
        before = [table.copy() for table in state.tables]
        super()._release_behind_windows(state)
        for group, (old, new) in enumerate(zip(before, state.tables, strict=True)):
            for index, (block, now) in enumerate(zip(old, new, strict=True)):
                if block != HOLE and now == HOLE:
                    self.stale[id(state), group, index] = block

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        state = self._running(seq)
        table = super().block_table(seq, group)
        return [
            self.stale.get((id(state), group, index), HOLE) if block == HOLE else block
            for index, block in enumerate(table)
        ]

    def free(self, seq: str) -> None:
        state = self._find(seq)
        super().free(seq)
        self.stale = {key: block for key, block in self.stale.items() if key[0] != id(state)}


class RoundsTheFrontierUp(ReferenceManager):
    """The first visible block is rounded up to the next whole one."""

    def first_visible(self, group: int, position: int) -> int:
        window = self.spec.groups[group].window
        if window is None:
            return 0
        return -(-max(0, position - window + 1) // self.spec.block_size)


def _sliding(subject: Subject) -> str | None:
    """One token at a time far past the window, while others take what is let go of."""
    for window in (2, 3, 5):
        scene = Scene(subject, num_blocks=24, windows=(window,), prefix_caching=False)
        scene.begin("a", [1, 2, 3])
        scene.step()
        for token in range(4, 16):
            scene.extend("a", token)
            scene.begin(f"x{token}", [token] * 2)
            scene.step()
            scene.free(f"x{token}")
            table = scene.manager.block_table("a")
            oldest = max(0, token - window + 1) // 2
            if any(block != HOLE for block in table[: max(0, oldest - 1)]):
                return f"blocks {list(table)} of {token} tokens are kept behind a window of {window}"
        if scene.said():
            return scene.said()
    return None


# -- X1: swapping ------------------------------------------------------------------------------------------------------


class SharesHostBlocks(ReferenceManager):
    """A second sequence that shares a block is given the first one's host block, uncounted."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.moved: dict[int, int] = {}

    def _move_out(self, block: int) -> int:
        if block in self.moved and self.host.references[self.moved[block]] > 0 and self.pool.references[block] > 0:
            return self.moved[block]
        self.moved[block] = super()._move_out(block)
        return self.moved[block]


class KeepsTheOldTable(ReferenceManager):
    """After coming back a sequence reads where it was before."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        self.before: dict[str, list[list[int]]] = {}

    def swap_out(self, seq: str) -> None:
        tables = [table.copy() for table in self._running(seq).tables]
        super().swap_out(seq)
        self.before[seq] = tables

    def swap_in(self, seq: str) -> None:
        super().swap_in(seq)
        self.before[seq] = self.before.get(seq, [])

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        table = list(super().block_table(seq, group))
        if self.before.get(seq):
            old = self.before[seq][group]
            return [*old[: len(table)], *table[len(old) :]]
        return table

    def free(self, seq: str) -> None:
        super().free(seq)
        self.before.pop(seq, None)


class ComesBackReversed(ReferenceManager):
    """Blocks come back in the opposite order."""

    def swap_in(self, seq: str) -> None:
        super().swap_in(seq)
        state = self.sequences[seq]
        state.tables = [table[::-1] for table in state.tables]


class CountsTheWrongTier(ReferenceManager):
    """Coming back takes a host block where one should be given back."""

    def _move_in(self, block: int) -> int:
        target = super()._move_in(block)
        if self.host.unused:
            self.host.unused.pop()
        return target


class SizesTheHostByTheDevice(ReferenceManager):
    """The host pool has as many blocks as the device, whatever it was given."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__(spec)
        if spec.host_blocks:
            self.host = BlockPool(spec.num_blocks)


class OffersOnlyCopiesOut(ReferenceManager):
    """What comes back is given blocks that nothing is copied into."""

    def take_copies(self) -> Sequence[Copy]:
        return [copy for copy in super().take_copies() if copy.tier is not Tier.IN]


def _round_trip(subject: Subject) -> str | None:
    """Out, while others overwrite the device, and back; twice, in a host pool that just holds it."""
    scene = Scene(subject, num_blocks=6, host_blocks=3, prefix_caching=False)
    scene.begin("a", [1, 2, 3, 4, 5])
    scene.step()
    for number in range(2):
        if scene.refused(scene.swap_out, "a"):
            return "a sequence that fits the host is refused"
        scene.step()
        scene.begin(f"x{number}", [7, 8, 9, 7, 8])
        scene.step()
        scene.swap_in("a")
        scene.step()
        scene.free(f"x{number}")
    return scene.said()


def _family_away(subject: Subject) -> str | None:
    """Two that share blocks go out one after the other; the first comes back and grows, then the second."""
    scene = Scene(subject, num_blocks=10, host_blocks=10, prefix_caching=False)
    scene.begin("a", [1, 2, 3, 4])
    scene.step()
    scene.fork("a", "b")
    scene.fork("a", "c")
    scene.swap_out("a")
    scene.swap_out("b")
    scene.step()
    scene.swap_in("a")
    scene.step()
    scene.begin("x", [7, 8, 9, 7])
    scene.step()
    scene.swap_out("x")
    scene.step()
    scene.swap_in("b")
    scene.step()
    return scene.said()


def _small_host(subject: Subject) -> str | None:
    scene = Scene(subject, num_blocks=6, host_blocks=1, prefix_caching=False)
    scene.begin("a", [1, 2, 3, 4, 5])
    scene.step()
    return None if scene.refused(scene.swap_out, "a") else "three blocks are moved to a host pool of one"


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "W1", "window-release-boundary", "allocator", 3,
        "blocks that slide out of the window leave too early, too late, or leave their mapping behind",
        ("sgl-project/sglang#22470", "InternLM/lmdeploy#3068", "vllm-project/vllm#28047", "vllm-project/vllm#19029",
         "vllm-project/vllm#36030", "sgl-project/sglang#27779"),
    ),
    Fault("W1a", "the block of the oldest visible key is let go of", with_manager("W1a", ReleasesTheFirstVisible),
          _sliding, needs=("windows",)),
    Fault("W1b", "the window is moved by the length after the append", with_manager("W1b", ReleasesAhead), _sliding,
          needs=("windows",)),
    Fault("W1c", "nothing is ever let go of", with_manager("W1c", NeverReleases), _sliding, needs=("windows",)),
    Fault("W1d", "the entry of a block that is gone stays in the table", with_manager("W1d", LeavesTheMapping),
          _sliding, needs=("windows",)),
    Fault("W1e", "the frontier is rounded up to whole blocks", with_manager("W1e", RoundsTheFrontierUp), _sliding,
          needs=("windows",)),
    FaultClass(
        "X1", "swap-mapping", "swap", 2,
        "swapping maps blocks wrongly",
        ("vllm-project/vllm@2729087ef", "vllm-project/vllm@be1e2163c", "vllm-project/vllm@1f739f9b0",
         "vllm-project/vllm#28951", "NVIDIA/TensorRT-LLM#8813", "NVIDIA/TensorRT-LLM#12834",
         "InternLM/lmdeploy#2881"),
    ),
    Fault("X1a", "sequences that share a block share its host block uncounted", with_manager("X1a", SharesHostBlocks),
          _family_away, needs=("swap", "fork")),
    Fault("X1b", "the table is not updated after coming back", with_manager("X1b", KeepsTheOldTable), _round_trip,
          needs=("swap",)),
    Fault("X1c", "blocks come back in another order", with_manager("X1c", ComesBackReversed), _round_trip,
          needs=("swap",)),
    Fault("X1d", "the wrong tier's blocks are counted", with_manager("X1d", CountsTheWrongTier), _round_trip,
          needs=("swap",)),
    Fault("X1f", "what comes back is given blocks that nothing is copied into",
          with_manager("X1f", OffersOnlyCopiesOut), _round_trip, needs=("swap",)),
    Fault("X1e", "the host pool is sized by the device", with_manager("X1e", SizesTheHostByTheDevice), _small_host,
          needs=("swap",)),
)  # fmt: skip
