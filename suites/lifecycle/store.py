"""Where the rows of a script rest, and the simplest such place: an array of integers.

A store is told which rows each sequence writes and reads in a step, and answers with the rows that were not what the
sequence expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvbench.canary import Identities
from kvbench.interface import Copy, PoolSpec, Tier


@dataclass(frozen=True)
class Work:
    """What one sequence does in a step.

    rows: identities of its rows. first, upto: it writes rows first .. upto - 1 and then reads all up to there, in each
    group from row `visible` on (what stands before is out of the window).
    tables: its block table in each group.
    """

    seq: str
    rows: Identities
    first: int
    upto: int
    visible: tuple[int, ...]
    tables: tuple[Sequence[int], ...]


@dataclass(frozen=True)
class Wrong:
    """A row that a sequence should have read and did not. words: what it read instead, and who wrote that when."""

    seq: str
    group: int
    position: int
    block: int
    words: str


class Store(Protocol):
    """Carries out what a step owes."""

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy blocks, in order."""

    def carry_out(self, works: Sequence[Work], step: int) -> list[Wrong]:
        """All writes, then all reads."""


class IntegerStore:
    """Memory whose slots hold one identity each: judges a manager alone, vectorised over the rows of a sequence.

    tell: puts an identity in words.
    """

    def __init__(self, spec: PoolSpec, tell: Callable[[int], str]) -> None:
        self.spec = spec
        self.tell = tell
        shape = (spec.num_blocks, spec.block_size)
        self.device: Identities = np.zeros(shape, dtype=np.uint64)
        self.host: Identities = np.zeros((spec.host_blocks, spec.block_size), dtype=np.uint64)
        self.when = np.zeros(shape, dtype=np.int64)
        positions = np.arange(max(spec.max_length, 1))
        self._block_of, self._offset = positions // spec.block_size, positions % spec.block_size
        # A row of another group is another row, whatever its tokens.
        self._salts = [np.uint64(group << 56) for group in range(len(spec.groups))]

    def copy(self, copies: Sequence[Copy]) -> None:
        for source, target, tier in copies:
            if tier is Tier.OUT:
                self.host[target] = self.device[source]
            elif tier is Tier.IN:
                self.device[target] = self.host[source]
            else:
                self.device[target] = self.device[source]
                self.when[target] = self.when[source]

    def carry_out(self, works: Sequence[Work], step: int) -> list[Wrong]:
        memory, when = self.device.reshape(-1), self.when.reshape(-1)
        reads: list[tuple[Work, int, int, npt.NDArray[np.int64], Identities]] = []
        for work in works:
            for group, table in enumerate(work.tables):
                start = min(work.visible[group], work.first)
                slots = self.slots(table, start, work.upto)
                rows = work.rows[start : work.upto] ^ self._salts[group]
                if work.first < work.upto:
                    written = slots[work.first - start :]
                    memory[written] = rows[work.first - start :]
                    when[written] = step
                skip = work.visible[group] - start
                reads.append((work, group, work.visible[group], slots[skip:], rows[skip:]))
        wrong = []
        for work, group, start, slots, rows in reads:
            found = memory[slots]
            if not np.array_equal(found, rows):
                wrong.append(self._tell(work, group, start, slots, found, rows))
        return wrong

    def slots(self, table: Sequence[int], start: int, upto: int) -> npt.NDArray[np.int64]:
        """Slots of rows start .. upto - 1."""
        blocks = np.asarray(table, dtype=np.int64)[self._block_of[start:upto]]
        result: npt.NDArray[np.int64] = blocks * self.spec.block_size + self._offset[start:upto]
        return result

    def _tell(
        self, work: Work, group: int, start: int, slots: npt.NDArray[np.int64], found: Identities, rows: Identities
    ) -> Wrong:
        place = int(np.argmax(found != rows))
        block = int(slots[place]) // self.spec.block_size
        when = int(self.when.reshape(-1)[slots[place]])
        return Wrong(work.seq, group, start + place, block, self._words(int(found[place]), group, when))

    def _words(self, row: int, group: int, when: int) -> str:
        if row == 0:
            return "a row that was never written"
        own = group if len(self._salts) > 1 else 0
        for other, salt in enumerate(self._salts):
            words = self.tell(row ^ int(salt))
            if not words.startswith("a row"):
                place = "" if other == own else f" of group {other}"
                return f"{words}{place}" + (f", written in step {when}" if when else "")
        return "a row that nobody wrote"


__all__ = ["IntegerStore", "Store", "Work", "Wrong"]
