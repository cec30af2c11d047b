"""Cases: shapes of caches, rows of batches, and the strategies that generate what a subject declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvbench.interface import HOLE
from kvbench.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

BLOCK_SIZES = (16, 8, 32, 5, 1, 64)
HEAD_DIMS = (64, 32, 80, 128, 96, 40, 256)
CODE_DIMS = (64, 128, 80, 96)  # long enough for codes that are far apart
VALUE_DIMS = (32, 80, 48)
RATIOS = (1, 2, 4, 3, 8, 6, 5, 7)
KV_HEADS = (1, 2, 3, 4)
MOST_HEADS = 12
"""Query heads in a generated shape, where the declared ratios allow it: more of them find nothing more."""

LONGEST = 600
"""Longest context that is generated: past the tiles and partitions (256, 512) that kernels work in."""

Order = Literal["ascending", "descending", "top", "shuffled"]
Fill = Literal["forward", "write"]


@dataclass(frozen=True)
class Shape:
    """Shape of one layer's K/V and of the queries. `head_dim_v` None: as `head_dim`."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    head_dim_v: int | None = None


@dataclass(frozen=True)
class Row:
    """One sequence of a batch: `context` tokens are in the cache already, `new` ones come with the batch."""

    context: int
    new: int

    @property
    def length(self) -> int:
        """Tokens after the batch."""
        return self.context + self.new


@dataclass(frozen=True)
class Scene:
    """A pool with sequences in it, and what happens next.

    order: which physical blocks the rows get: in order, from the last one down, the highest ones, or at random.
    spare: blocks that no row owns. fill: how the context gets into the cache.
    magnitude: of the queries; large ones make attention look at few keys. seed: of the data and of the block order.
    """

    shape: Shape
    rows: tuple[Row, ...]
    order: Order = "ascending"
    spare: int = 1
    layers: int = 1
    fill: Fill = "forward"
    magnitude: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = (self.shape.num_q_heads, self.shape.num_kv_heads, self.shape.head_dim, self.shape.block_size)
        if min(*sizes, self.layers) < 1 or min((n for r in self.rows for n in (r.context, r.new)), default=0) < 0:
            raise ValueError("sizes must be positive and lengths not negative")
        if self.spare < 0 or self.shape.num_q_heads % self.shape.num_kv_heads:
            raise ValueError("spare must not be negative, num_q_heads a multiple of num_kv_heads")


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)


def tables_of(scene: Scene) -> tuple[list[list[int]], int]:
    """The block table of each row, and the number of blocks in the pool."""
    import random

    counts = [blocks_for(row.length, scene.shape.block_size) for row in scene.rows]
    needed, total = sum(counts), sum(counts) + scene.spare
    ids = list(range(total))
    if scene.order == "descending":
        ids.reverse()
    elif scene.order == "top":
        ids = ids[total - needed :]
    elif scene.order == "shuffled":
        random.Random(scene.seed).shuffle(ids)
    tables, start = [], 0
    for count in counts:
        tables.append(ids[start : start + count])
        start += count
    return tables, max(total, 1)


def padded(tables: Sequence[Sequence[int]], extra: int = 0) -> list[list[int]]:
    """Tables of equal width, padded with holes, with `extra` columns that no row needs."""
    width = max((len(table) for table in tables), default=0) + extra
    return [[*table, *[HOLE] * (width - len(table))] for table in tables]


# --------------------------------------------------------------------------------------------------------------------
# Strategies
# --------------------------------------------------------------------------------------------------------------------


def shapes(subject: Subject, head_dims: Sequence[int] = HEAD_DIMS) -> SearchStrategy[Shape]:
    """Shapes that the subject's kernel declares."""
    import hypothesis.strategies as st

    kernel = subject.kernel
    dims = kernel.head_dims.among(head_dims)
    group = subject.precision.quant_group
    dims = [dim for dim in dims if group is None or dim % group == 0] or dims
    # Integer codes of K and V of different sizes make engines die, which a check in the same process cannot tell.
    unequal = kernel.separate_value_dim and not subject.precision.quantised
    value_dims: list[int | None] = [None, *(VALUE_DIMS if unequal else ())]

    @st.composite
    def draw_shape(draw: DrawFn) -> Shape:
        ratio = draw(st.sampled_from(kernel.gqa_ratios.among(RATIOS)))
        kv_heads = draw(st.sampled_from([heads for heads in KV_HEADS if heads * ratio <= MOST_HEADS] or [1]))
        return Shape(
            num_q_heads=ratio * kv_heads,
            num_kv_heads=kv_heads,
            head_dim=draw(st.sampled_from(dims)),
            block_size=draw(st.sampled_from(kernel.block_sizes.among(BLOCK_SIZES))),
            head_dim_v=draw(st.sampled_from(value_dims)),
        )

    return draw_shape()


def rows(subject: Subject, block_size: int, long: bool = False) -> SearchStrategy[Row]:
    """Rows around the boundaries of blocks: decodes, prefills, chunks, and (where accepted) empty ones."""
    import hypothesis.strategies as st

    bs, empty = block_size, subject.limit("empty_rows") is None
    contexts = sorted({0, 1, bs - 1, bs, bs + 1, 2 * bs - 1, 2 * bs, 2 * bs + 1, 3 * bs})
    news = sorted({1, 2, bs - 1, bs, bs + 1, 2 * bs + 1} - {0}) + ([0] if empty else [])
    contexts, news = [n for n in contexts if n <= 130], [n for n in news if n <= 70]
    context = st.sampled_from(contexts) | st.integers(0, min(3 * bs, 100))
    new = st.sampled_from(news) | st.integers(1, min(2 * bs + 1, 40))
    usual = st.builds(Row, context, new)
    many = st.builds(Row, st.integers(100, LONGEST), st.sampled_from([1, 2, 17]))
    return st.one_of(usual, usual, usual, many) if long else usual


def scenes(
    subject: Subject,
    head_dims: Sequence[int] = HEAD_DIMS,
    max_rows: int = 3,
    min_rows: int = 1,
    max_layers: int = 1,
    long: bool = False,
) -> SearchStrategy[Scene]:
    """Scenes of what the subject's kernel declares."""
    import hypothesis.strategies as st

    fills: list[Fill] = ["forward", *(("write",) if "write" in subject.kernel.operations else ())]
    orders: list[Order] = ["ascending", "shuffled", "descending", "top"]

    @st.composite
    def draw_scene(draw: DrawFn) -> Scene:
        shape = draw(shapes(subject, head_dims))
        return Scene(
            shape=shape,
            rows=tuple(draw(st.lists(rows(subject, shape.block_size, long), min_size=min_rows, max_size=max_rows))),
            order=draw(st.sampled_from(orders)),
            spare=draw(st.integers(0, 3)),
            layers=draw(st.integers(1, max_layers)),
            fill=draw(st.sampled_from(fills)),
            magnitude=draw(st.sampled_from([1.0, 3.0])),
            seed=draw(st.integers(0, 999)),
        )

    return draw_scene()


def nothing_required(subject: Subject) -> str | None:  # noqa: ARG001
    """For checks that every kernel can be asked."""
    return None


def needs_operation(operation: Any, subject: Subject) -> str | None:
    """Why a check that needs `operation` cannot be asked, or None."""
    return None if operation in subject.kernel.operations else f"operation {operation} is not declared"
