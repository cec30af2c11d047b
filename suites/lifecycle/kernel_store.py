"""Rows in the cache of an attention kernel: written by `forward`, read through attention itself.

Most query heads are canary probes: each aims at one row of its sequence and decodes what comes out. The last head is
indifferent: its query is zero, so it must return the plain mean of V over the context. Probes cannot see a row too
many, as none aims at it; the mean can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.canary import (
    Floats,
    Identities,
    Integers,
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
from kvbench.suites.lifecycle.store import Work, Wrong

MOST_TURNS = 2
"""How many calls a step spends on rows that do not fit into the heads of one call; the next step goes on from there."""

_SHIFT = 2.0
"""A row too many or too few among n moves the mean by its distance from it, over n + 1: more than this, as digits
reach from -8 to 7, in some of the 32 or more elements."""

_ROUNDING = 2.0**-4
"""What rounding may move a mean of digits by: in bfloat16, and in 8-bit codes of V."""


@dataclass(frozen=True)
class Probes:
    """What each new token asks for. positions: rows probed [num_tokens, num_q_heads]; -1 where a head wants the mean.

    owners: the work of each token. places: the token's own position.
    """

    positions: Integers
    owners: tuple[Work, ...]
    places: tuple[int, ...]


class KernelStore:
    """The joined store. manager: given where the adapter's own manager owns the tables."""

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
        self.written: dict[int, None] = {}

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
            rows = work.rows[work.first : work.upto].tolist()
            self.book.add_sequence(rows, work.seq, work.first)
            self.written.update(dict.fromkeys(rows))
        busy = [work for work in works if work.first < work.upto]
        idle = [_last_token(work) for work in works if work.first >= work.upto > 0]
        if "attend" not in self.operations:
            # A query needs a token, so an idle sequence computes its last one again.
            return self._read([*busy, *idle], step, self.kernel.forward)
        wrong = self._read(busy, step, self.kernel.forward)
        return wrong or self._read(idle, step, self.kernel.attend)

    def _read(self, works: Sequence[Work], step: int, call: Callable[[Any, Batch], Any]) -> list[Wrong]:
        if not works:
            return []
        needed = self._turns(max(work.upto for work in works))
        first = 0 if needed <= MOST_TURNS else step * MOST_TURNS
        for turn in range(min(needed, MOST_TURNS)):
            probes = self._aim(works, first + turn)
            expected = self._expected(probes)
            batch = self._batch(works, probes, expected)
            out = call(self.cache, batch).out.detach().float().cpu().numpy()
            if wrong := self._misread(probes, expected, out) or self._off_the_mean(works, probes, out, call):
                return wrong
        return []

    # -- aiming ------------------------------------------------------------------------------------------------------

    def _turns(self, rows: int) -> int:
        """Calls that probe each of `rows` rows, and the mean."""
        heads = self.cache_spec.num_q_heads
        return turns_to_cover(rows, heads - 1, 1) if heads > 1 else rows + 1

    def _aim(self, works: Sequence[Work], turn: int) -> Probes:
        """The last token of each sequence covers its context turn by turn, earlier ones probe what they can see."""
        heads = self.cache_spec.num_q_heads
        positions: list[Integers] = []
        for work in works:
            earlier = list(range(work.first + 1, work.upto))
            counts = [*earlier, work.upto]
            if heads == 1 and turn == 0:
                positions.append(np.full((len(counts), 1), -1))
                continue
            probing = max(1, heads - 1)
            rows = [probe_positions([0], [work.upto], probing, 1, turn)]
            if earlier:
                rows.insert(0, probe_positions([0] * len(earlier), earlier, probing, 1, turn))
            mean = np.full((len(counts), heads - probing), -1)
            positions.append(np.concatenate([np.concatenate(rows), mean], axis=1))
        owners = tuple(work for work in works for _ in range(work.first, work.upto))
        places = tuple(place for work in works for place in range(work.first, work.upto))
        return Probes(np.concatenate(positions), owners, places)

    def _expected(self, probes: Probes) -> Identities:
        """Identities [num_tokens, num_q_heads] of the probed rows; heads that want the mean name the first one."""
        rows = [work.rows[np.maximum(aims, 0)] for work, aims in zip(probes.owners, probes.positions, strict=True)]
        return as_identities(np.stack(rows))

    def _batch(self, works: Sequence[Work], probes: Probes, expected: Identities) -> Batch:
        spec = self.cache_spec
        longest = max(work.upto for work in works)
        queries = probe_queries(expected, spec.num_kv_heads, spec.head_dim, max(longest, len(self.written)))
        queries[probes.positions < 0] = 0
        return self._batch_of(works, queries)

    def _batch_of(self, works: Sequence[Work], queries: Floats) -> Batch:
        import torch

        spec = self.cache_spec
        dtype = getattr(torch, spec.precision.compute)
        rows = np.concatenate([work.rows[work.first : work.upto] for work in works])
        width = max(len(work.tables[0]) for work in works)
        tables = [[*work.tables[0], *[HOLE] * (width - len(work.tables[0]))] for work in works]
        starts = np.cumsum([0, *[work.upto - work.first for work in works]])

        def floats(values: npt.NDArray[Any]) -> Any:
            return torch.from_numpy(values).to(dtype).to(spec.device)

        def integers(values: Any, kind: Any) -> Any:
            return torch.tensor(values, dtype=kind, device=spec.device)

        return Batch(
            q=floats(queries),
            k=floats(key_codes(rows, spec.num_kv_heads, spec.head_dim)),
            v=floats(value_digits(rows, spec.num_kv_heads, spec.value_dim)),
            block_tables=integers(tables, torch.int32),
            seq_lens=integers([work.upto for work in works], torch.int32),
            query_start_loc=integers(starts.tolist(), torch.int32),
            slot_mapping=integers([slot for work in works for slot in self._slots(work)], torch.int64),
            seqs=tuple(work.seq for work in works),
        )

    def _slots(self, work: Work) -> list[int]:
        size = self.spec.block_size
        return [work.tables[0][place // size] * size + place % size for place in range(work.first, work.upto)]

    # -- judging what came out ---------------------------------------------------------------------------------------

    def _misread(self, probes: Probes, expected: Identities, out: Floats) -> list[Wrong]:
        """Probes that brought another row than the one that they aimed at."""
        spelled = value_digits(expected.reshape(-1), 1, self.cache_spec.value_dim).reshape(out.shape)
        out = np.where((probes.positions < 0)[..., None], spelled, out)
        wrong = []
        for miss in misreads(out, expected, self.book):
            work, position = probes.owners[miss.token], int(probes.positions[miss.token, miss.head])
            competing = work.rows[: work.upto]
            if distinct_codes(as_identities([miss.expected]), competing, self.cache_spec.head_dim)[0]:
                wrong.append(self._wrong(work, position, miss.words))
        return wrong

    def _wrong(self, work: Work, position: int, words: str) -> Wrong:
        return Wrong(work.seq, 0, position, work.tables[0][position // self.spec.block_size], words)

    def _off_the_mean(
        self, works: Sequence[Work], probes: Probes, out: Floats, call: Callable[[Any, Batch], Any]
    ) -> list[Wrong]:
        """Tokens whose indifferent head brought something else than the mean of V over their context."""
        for token, (work, place) in enumerate(zip(probes.owners, probes.places, strict=True)):
            heads = np.flatnonzero(probes.positions[token] < 0)
            if not len(heads):
                continue
            count = place + 1
            mean = value_digits(work.rows[:count], 1, self.cache_spec.value_dim)[:, 0].mean(axis=0)
            distance = np.abs(out[token, heads[0]] - mean).max()
            if not distance <= _ROUNDING + _SHIFT / (count + 1):
                seen = self._stranger(works, work, place, call)
                words = seen or (
                    f"that its {count} keys, weighted equally, give a V that is off by {distance:.2g}: it sees rows "
                    "outside its context, or not all inside"
                )
                return [self._wrong(work, place, words)]
        return []

    def _stranger(self, works: Sequence[Work], work: Work, place: int, call: Callable[[Any, Batch], Any]) -> str | None:
        """A row outside the context that a token sees, in words: found by aiming at all of them in turn."""
        own = set(work.rows[: place + 1].tolist())
        strangers = [row for row in self.written if row not in own]
        spec = self.cache_spec
        token = sum(w.upto - w.first for w in works[: works.index(work)]) + place - work.first
        total = sum(w.upto - w.first for w in works)
        for start in range(0, len(strangers), spec.num_q_heads):
            aimed = strangers[start : start + spec.num_q_heads]
            aimed += [aimed[-1]] * (spec.num_q_heads - len(aimed))
            expected = as_identities([aimed] * total)
            queries = probe_queries(expected, spec.num_kv_heads, spec.head_dim, len(self.written))
            out = call(self.cache, self._batch_of(works, queries)).out.detach().float().cpu().numpy()
            spelled = value_digits(aimed, 1, spec.value_dim)[:, 0]
            for head in np.flatnonzero((np.abs(out[token] - spelled) < 0.5).all(axis=-1)):
                return f"that it sees {self.book.name(aimed[head])} as well, which is not in its context"
        return None


def _last_token(work: Work) -> Work:
    return Work(work.seq, work.rows, work.upto - 1, work.upto, work.visible, work.tables)


__all__ = ["MOST_TURNS", "KernelStore"]
