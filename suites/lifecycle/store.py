"""Where the rows of a script rest: an array of integers, or the cache of an attention kernel.

Both are told which rows each sequence writes and reads in a step, and answer with the rows that were not what the
sequence expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvbench.canary import (
    Identities,
    RowBook,
    as_identities,
    distinct_codes,
    key_codes,
    misreads,
    probe_positions,
    probe_queries,
    turns_to_cover,
    value_digits,
)
from kvbench.checks import NotApplicable
from kvbench.interface import HOLE, Batch, CacheSpec, Copy, PoolSpec, Tier
from kvbench.subject import GuardedManager, Subject
from kvbench.suites.lifecycle.operations import CacheShape

MOST_TURNS = 6
"""How many times a kernel is called in a step to read what its heads cannot read in one call."""


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


class KernelStore:
    """Memory behind an attention kernel: rows are written by `forward` and read through attention itself.

    manager: given where the adapter's own manager owns the tables.
    """

    def __init__(self, subject: Subject, spec: PoolSpec, shape: CacheShape, manager: GuardedManager | None) -> None:
        self.spec = spec
        self.cache_spec = CacheSpec(
            shape.num_q_heads,
            shape.num_kv_heads,
            shape.head_dim,
            spec.block_size,
            precision=subject.precision,
            device=subject.kernel.devices[0],
        )
        self.operations = subject.kernel.operations
        self.kernel = subject.new_kernel()
        self.cache = self.kernel.create(self.cache_spec, spec.num_blocks, manager)
        self.book = RowBook(shape.num_kv_heads, shape.head_dim)

    def copy(self, copies: Sequence[Copy]) -> None:
        if not copies:
            return
        if "copy_blocks" not in self.operations:
            raise NotApplicable("the manager owes block copies and the kernel has no copy_blocks")
        if any(copy.tier is not Tier.WITHIN for copy in copies):
            raise NotApplicable("kernels cannot copy to the host")
        self.kernel.copy_blocks(self.cache, [(copy.source, copy.target) for copy in copies])

    def carry_out(self, works: Sequence[Work], step: int) -> list[Wrong]:
        for work in works:
            self.book.add_sequence(work.rows[work.first : work.upto].tolist(), work.seq, work.first)
        busy = [work for work in works if work.first < work.upto]
        idle = [work for work in works if work.first >= work.upto > 0]
        if "attend" not in self.operations:
            # A query needs a token, so an idle sequence computes its last one again.
            busy += [self._again(work) for work in idle]
            idle = []
        wrong = self._read(busy, step, self.kernel.forward) if busy else []
        return wrong + (self._read([self._again(work) for work in idle], step, self.kernel.attend) if idle else [])

    @staticmethod
    def _again(work: Work) -> Work:
        return Work(work.seq, work.rows, work.upto - 1, work.upto, work.visible, work.tables)

    def _read(self, works: Sequence[Work], step: int, call: Callable[[Any, Batch], Any]) -> list[Wrong]:
        spec = self.cache_spec
        needed = turns_to_cover(max(work.upto for work in works), spec.num_q_heads, spec.num_kv_heads)
        first = 0 if needed <= MOST_TURNS else step * MOST_TURNS
        wrong: list[Wrong] = []
        for turn in range(min(needed, MOST_TURNS)):
            positions = [self._positions(work, first + turn) for work in works]
            expected = np.concatenate([w.rows[place] for w, place in zip(works, positions, strict=True)])
            out = call(self.cache, self._batch(works, expected)).out
            wrong += self._compare(works, np.concatenate(positions), expected, out)
            if wrong:
                break
        return wrong

    def _positions(self, work: Work, turn: int) -> npt.NDArray[np.int64]:
        """Which row each new token probes in each head; the last token covers the context turn by turn."""
        spec = self.cache_spec
        earlier = np.arange(work.first, work.upto - 1)
        probes = [probe_positions([0], [work.upto], spec.num_q_heads, spec.num_kv_heads, turn)]
        if len(earlier):
            firsts, counts = [0] * len(earlier), (earlier + 1).tolist()
            probes.insert(0, probe_positions(firsts, counts, spec.num_q_heads, spec.num_kv_heads, turn))
        return np.concatenate(probes)

    def _batch(self, works: Sequence[Work], expected: Identities) -> Batch:
        import torch

        spec = self.cache_spec
        dtype = getattr(torch, spec.precision.compute)
        written = np.concatenate([work.rows[work.first : work.upto] for work in works])
        longest = max(work.upto for work in works)
        width = max(len(work.tables[0]) for work in works)
        tables = [[*work.tables[0], *[HOLE] * (width - len(work.tables[0]))] for work in works]
        counts = [work.upto - work.first for work in works]

        def floats(values: npt.NDArray[Any]) -> Any:
            return torch.from_numpy(values).to(dtype).to(spec.device)

        def integers(values: Any, kind: Any) -> Any:
            return torch.tensor(values, dtype=kind, device=spec.device)

        return Batch(
            q=floats(probe_queries(expected, spec.num_kv_heads, spec.head_dim, longest)),
            k=floats(key_codes(written, spec.num_kv_heads, spec.head_dim)),
            v=floats(value_digits(written, spec.num_kv_heads, spec.value_dim)),
            block_tables=integers(tables, torch.int32),
            seq_lens=integers([work.upto for work in works], torch.int32),
            query_start_loc=integers([0, *np.cumsum(counts).tolist()], torch.int32),
            slot_mapping=integers(np.concatenate([self._slots(work) for work in works]).tolist(), torch.int64),
            seqs=tuple(work.seq for work in works),
        )

    def _slots(self, work: Work) -> npt.NDArray[np.int64]:
        positions = np.arange(work.first, work.upto)
        blocks = np.asarray(work.tables[0], dtype=np.int64)[positions // self.spec.block_size]
        slots: npt.NDArray[np.int64] = blocks * self.spec.block_size + positions % self.spec.block_size
        return slots

    def _compare(
        self, works: Sequence[Work], positions: npt.NDArray[np.int64], expected: Identities, out: Any
    ) -> list[Wrong]:
        found = out.detach().float().cpu().numpy()
        owners = [work for work in works for _ in range(work.first, work.upto)]
        wrong = []
        for miss in misreads(found, expected, self.book):
            work = owners[miss.token]
            competing = work.rows[: work.upto]
            if not distinct_codes(as_identities([miss.expected]), competing, self.cache_spec.head_dim)[0]:
                continue
            position = int(positions[miss.token, miss.head])
            block = work.tables[0][position // self.spec.block_size]
            wrong.append(Wrong(work.seq, 0, position, block, miss.words))
        return wrong


__all__ = ["MOST_TURNS", "IntegerStore", "KernelStore", "Store", "Work", "Wrong"]
