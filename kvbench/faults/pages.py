"""What kernel faults are made of and triggered by: the reference kernel with one operation replaced, small batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvbench.faults.adapters import KERNEL, MadeAdapter, with_kernel
from kvbench.interface import (
    FLOAT32,
    HOLE,
    NO_SLOT,
    AttentionOptions,
    AttentionResult,
    Batch,
    CacheManager,
    CacheSpec,
    Precision,
)
from kvbench.subject import Subject

if TYPE_CHECKING:
    from torch import Tensor

Attend = Callable[[Any, Batch], AttentionResult]


class SpoiltKernel:
    """The reference kernel; a fault overrides `write`, `attend` or `copy_blocks`, and `forward` is made of these."""

    def __init__(self) -> None:
        from kvbench.reference.kernel import ReferenceKernel

        self.right = ReferenceKernel()

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> Any:
        return self.right.create(spec, num_blocks, manager)

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        self.right.write(cache, k, v, slot_mapping, layer)

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        return self.right.attend(cache, batch)

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int]]) -> None:
        self.right.copy_blocks(cache, pairs)

    def forward(self, cache: Any, batch: Batch) -> AttentionResult:
        self.check(cache, batch)
        self.write(cache, batch.k, batch.v, batch.slot_mapping, batch.layer)
        return self.attend(cache, batch)

    def check(self, cache: Any, batch: Batch) -> None:
        """Refuse what the reference refuses, before anything is written."""
        from kvbench.reference.requests import check_forward

        check_forward(cache.spec, cache.num_blocks, batch)

    def changed(self, cache: Any, batch: Batch, **changed: Tensor) -> AttentionResult:
        """What the reference computes of a legal batch with some of its arguments replaced, legal or not."""
        from kvbench.reference.requests import check_attend

        check_attend(cache.spec, cache.num_blocks, batch)
        return self.unchecked(cache, batch, **changed)

    def unchecked(self, cache: Any, batch: Batch, **changed: Tensor) -> AttentionResult:
        """The same of any batch."""
        from kvbench.reference.attention import attend_paged

        exact = attend_paged(
            batch.q,
            changed.get("keys", cache.keys[batch.layer]),
            changed.get("values", cache.values[batch.layer]),
            changed.get("tables", batch.block_tables),
            changed.get("seq_lens", batch.seq_lens),
            changed.get("starts", batch.query_start_loc),
            batch.options,
        )
        return AttentionResult(exact.out.to(batch.q.dtype), exact.lse)


class AttendsUnderOtherOptions(SpoiltKernel):
    """A kernel that changes its options on the way."""

    def options(self, options: AttentionOptions, batch: Batch) -> AttentionOptions:
        """What is done instead of what is asked."""
        return options

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        return super().attend(cache, replace(batch, options=self.options(batch.options, batch)))


def spoilt(
    name: str, make: Callable[[], Any], precisions: tuple[Precision, ...] = (FLOAT32,), **declared: Any
) -> MadeAdapter:
    """An adapter of a spoilt kernel, in one precision unless told otherwise, without `plan`."""
    declared = {"operations": KERNEL.operations - {"plan"}, **declared}
    return with_kernel(name, make, precisions=precisions, **declared)


@dataclass(frozen=True)
class Row:
    """A sequence of a batch: tokens that are in the cache, and new ones."""

    context: int
    new: int


class Pages:
    """Sequences in a subject's kernel, their blocks in descending order from the top of the pool.

    scale: of keys; large ones give far apart logits. Rows that nobody owns hold `dead`.
    """

    def __init__(
        self, subject: Subject, rows: Sequence[tuple[int, int]], spec: CacheSpec, dead: float = 3.0, scale: float = 1.0
    ) -> None:
        import torch

        self.spec, self.rows = spec, [Row(*row) for row in rows]
        self.kernel = subject.new_kernel()
        size = spec.block_size
        counts = [-(-(row.context + row.new) // size) for row in self.rows]
        self.num_blocks = sum(counts) + 2
        ids = iter(range(self.num_blocks - 1, -1, -1))
        self.tables = [[next(ids) for _ in range(count)] for count in counts]
        self.cache = self.kernel.create(spec, self.num_blocks)
        generator = torch.Generator().manual_seed(0)

        def randn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.k = [scale * randn(row.context + row.new, spec.num_kv_heads, spec.head_dim) for row in self.rows]
        self.v = [randn(row.context + row.new, spec.num_kv_heads, spec.value_dim) for row in self.rows]
        self.q = [randn(row.new, spec.num_q_heads, spec.head_dim) for row in self.rows]
        slots = torch.arange(self.num_blocks * size)
        for layer in range(spec.num_layers):
            filled = torch.full((len(slots), spec.num_kv_heads, spec.head_dim), dead)
            values = torch.full((len(slots), spec.num_kv_heads, spec.value_dim), dead)
            self.kernel.write(self.cache, filled, values, slots, layer)
            for number, row in enumerate(self.rows):
                k, v = self.k[number][: row.context], self.v[number][: row.context]
                self.kernel.write(self.cache, k, v, self.slots(number, 0, row.context), layer)

    def slots(self, number: int, start: int, stop: int) -> Tensor:
        """Slots of positions start .. stop - 1 of a sequence."""
        import torch

        size, table = self.spec.block_size, self.tables[number]
        return torch.tensor([table[p // size] * size + p % size for p in range(start, stop)], dtype=torch.int64)

    def batch(self, options: AttentionOptions = AttentionOptions(), padding: int = 0, layer: int = 0) -> Batch:  # noqa: B008
        """The new tokens of all rows; `padding` tokens of nobody at the end."""
        import torch

        width = max(map(len, self.tables), default=0)
        tables = [[*table, *[HOLE] * (width - len(table))] for table in self.tables]
        slots = [self.slots(number, row.context, row.context + row.new) for number, row in enumerate(self.rows)]
        new_k = [k[row.context :] for k, row in zip(self.k, self.rows, strict=True)]
        new_v = [v[row.context :] for v, row in zip(self.v, self.rows, strict=True)]

        def padded(pieces: Sequence[Tensor], heads: int, dim: int) -> Tensor:
            return torch.cat([*pieces, torch.full((padding, heads, dim), 7.0)])

        spec = self.spec
        return Batch(
            q=padded(self.q, spec.num_q_heads, spec.head_dim),
            k=padded(new_k, spec.num_kv_heads, spec.head_dim),
            v=padded(new_v, spec.num_kv_heads, spec.value_dim),
            block_tables=torch.tensor(tables, dtype=torch.int32).view(len(tables), width),
            seq_lens=torch.tensor([row.context + row.new for row in self.rows], dtype=torch.int32),
            query_start_loc=torch.tensor([0, *itertools.accumulate(row.new for row in self.rows)], dtype=torch.int32),
            slot_mapping=torch.cat([*slots, torch.full((padding,), NO_SLOT)]).to(torch.int64),
            options=options,
            layer=layer,
        )

    def wrong(self, batch: Batch) -> str | None:
        """How far `forward` is from dense attention in float64, where that is too far."""
        import torch

        from kvbench.reference.attention import attend_dense

        found = self.kernel.forward(self.cache, batch)
        exact = attend_dense(batch.q, self.k, self.v, batch.query_start_loc, batch.options)
        count = int(batch.query_start_loc[-1])
        difference = (found.out[:count].double() - exact.out[:count]).abs()
        off = float(difference.max()) if difference.numel() else 0.0
        if not off < 1e-4:
            return f"out is off by {off:.3g}"
        if found.lse is not None:
            sums, expected = found.lse[:count].double(), torch.as_tensor(exact.lse)[:count]
            if not bool(((sums == expected) | ((sums - expected).abs() < 1e-3)).all()):
                return "lse is wrong"
        return None


SHAPE = CacheSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, block_size=4)

ROWS = ((0, 5), (5, 1), (7, 4), (4, 1), (8, 1), (0, 1))
"""A prefill, decodes at and beside block boundaries, a chunk."""


def attends(
    rows: Sequence[tuple[int, int]] = ROWS,
    options: AttentionOptions = AttentionOptions(),  # noqa: B008
    spec: CacheSpec = SHAPE,
    **about: float,
) -> Callable[[Subject], str | None]:
    """A trigger: one batch against dense attention."""

    def trigger(subject: Subject) -> str | None:
        pages = Pages(subject, rows, spec, **about)
        return pages.wrong(pages.batch(options))

    return trigger


__all__ = ["ROWS", "SHAPE", "AttendsUnderOtherOptions", "Pages", "SpoiltKernel", "attends", "spoilt"]
