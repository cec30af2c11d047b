"""A kernel's cache with sequences in it: filling, asking and reading it, always through the interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kvbench.checks import Violation
from kvbench.errors import CacheError
from kvbench.interface import AttentionOptions, AttentionResult, Batch, CacheSpec
from kvbench.subject import EngineError, GuardedKernel, Subject
from kvbench.suites.correctness.cases import Row, Scene, Shape, padded, tables_of
from kvbench.timeline import Timeline, TimelineStep

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PLAIN = AttentionOptions()


class HasScene(Protocol):
    """A case that plays in a scene."""

    @property
    def scene(self) -> Scene: ...


C = TypeVar("C", bound=HasScene)


def cache_spec(subject: Subject, shape: Shape, layers: int = 1) -> CacheSpec:
    """The cache that a scene needs, in the subject's precision."""
    return CacheSpec(
        num_q_heads=shape.num_q_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=shape.block_size,
        precision=subject.precision,
        head_dim_v=shape.head_dim_v,
        num_layers=layers,
        device=subject.kernel.devices[0],
    )


def compute_dtype(spec: CacheSpec) -> torch.dtype:
    """The dtype of q, k, v and out."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.precision.compute)
    return dtype


@dataclass
class Memory:
    """A kernel with one cache of `num_blocks` blocks. writes: sequences are stored by `write`, else by `forward`."""

    kernel: GuardedKernel
    cache: Any
    spec: CacheSpec
    num_blocks: int
    writes: bool

    @classmethod
    def create(cls, subject: Subject, spec: CacheSpec, num_blocks: int, fill: str = "forward") -> Memory:
        """A fresh kernel with a cache of `num_blocks` blocks; `fill` "write" uses the kernel's `write`."""
        kernel = subject.new_kernel()
        writes = fill == "write" and "write" in subject.kernel.operations
        return cls(kernel, kernel.create(spec, num_blocks), spec, num_blocks, writes)

    def tensor(self, rows: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Numbers as a tensor on the device of the cache, in the compute dtype unless given."""
        import torch

        return torch.as_tensor(rows).to(self.spec.device, dtype or compute_dtype(self.spec))

    def batch(
        self,
        rows: Sequence[Row],
        tables: Sequence[Sequence[int]],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        options: AttentionOptions = PLAIN,
        layer: int = 0,
    ) -> Batch:
        """A batch of `rows`, whose new tokens are the last ones of their tables' contexts."""
        import torch

        starts = [0]
        slots: list[int] = []
        for row, table in zip(rows, tables, strict=True):
            starts.append(starts[-1] + row.new)
            slots += slots_of(table, row.context, row.length, self.spec.block_size)
        device = self.spec.device
        # An empty list of tables has no width, and a batch without rows still has two dimensions.
        columns = torch.tensor(padded(tables), dtype=torch.int32, device=device).reshape(len(rows), -1 if rows else 0)
        return Batch(
            q=q,
            k=k,
            v=v,
            block_tables=columns,
            seq_lens=torch.tensor([row.length for row in rows], dtype=torch.int32, device=device),
            query_start_loc=torch.tensor(starts, dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
            options=options,
            layer=layer,
        )

    def store(self, tables: Sequence[Sequence[int]], k: Sequence[Tensor], v: Sequence[Tensor], layer: int = 0) -> None:
        """Write whole sequences from position 0 on. k[i]: [length_i, num_kv_heads, head_dim]."""
        import torch

        kept = [i for i, rows in enumerate(k) if len(rows)]
        if not kept:
            return
        keys, values = torch.cat([k[i] for i in kept]), torch.cat([v[i] for i in kept])
        rows = [Row(0, len(k[i])) for i in kept]
        q = torch.ones(len(keys), self.spec.num_q_heads, self.spec.head_dim).to(keys)
        batch = self.batch(rows, [tables[i] for i in kept], q, keys, values, layer=layer)
        if self.writes:
            self.kernel.write(self.cache, keys, values, batch.slot_mapping, layer)
        else:
            self.kernel.forward(self.cache, batch)

    def store_everywhere(self, k: Tensor, v: Tensor, layer: int = 0) -> None:
        """Fill the whole pool. k: [num_blocks * block_size, num_kv_heads, head_dim]."""
        self.store([list(range(self.num_blocks))], [k], [v], layer)


def slots_of(table: Sequence[int], start: int, stop: int, block_size: int) -> list[int]:
    """Slots of positions start..stop-1; past the table and in holes what plain arithmetic on a hole gives."""
    blocks = [table[p // block_size] if p // block_size < len(table) else -1 for p in range(start, stop)]
    return [block * block_size + p % block_size for block, p in zip(blocks, range(start, stop), strict=True)]


@dataclass(frozen=True)
class Content:
    """Random q, k and v of a scene for one layer, rounded to the compute dtype.

    q[i]: [new_i, num_q_heads, head_dim]; k[i], v[i]: [length_i, num_kv_heads, ...], context and new tokens. none: q, k
    and v of no token.
    """

    q: tuple[Tensor, ...]
    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    none: tuple[Tensor, Tensor, Tensor]


def random_content(scene: Scene, spec: CacheSpec, layer: int = 0) -> Content:
    """Data of a scene. Every other KV head's values have a mean of their own: what shrinks them cannot average out."""
    import torch

    made = torch.Generator().manual_seed(scene.seed * 7919 + layer)
    dtype = compute_dtype(spec)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    means = torch.tensor([1.5 * (head % 2) - 0.5 * (head % 3) for head in range(spec.num_kv_heads)])[:, None]
    q, k, v = [], [], []
    for row in scene.rows:
        q.append(normal(row.new, spec.num_q_heads, spec.head_dim) * scene.magnitude)
        k.append(normal(row.length, spec.num_kv_heads, spec.head_dim))
        v.append(normal(row.length, spec.num_kv_heads, spec.value_dim) + means)

    def ready(rows: Tensor) -> Tensor:
        return rows.to(spec.device, dtype)

    heads_and_dims = ((spec.num_q_heads, spec.head_dim), (spec.num_kv_heads, spec.head_dim))
    none_q, none_k = (ready(torch.zeros(0, *sizes)) for sizes in heads_and_dims)
    none_v = ready(torch.zeros(0, spec.num_kv_heads, spec.value_dim))
    q_rows, k_rows, v_rows = (tuple(map(ready, part)) for part in (q, k, v))
    return Content(q_rows, k_rows, v_rows, (none_q, none_k, none_v))


@dataclass
class Stage:
    """A scene that is set: the memory, the tables and the data of each layer."""

    scene: Scene
    memory: Memory
    tables: list[list[int]]
    content: list[Content]

    def new_batch(
        self,
        options: AttentionOptions = PLAIN,
        layer: int = 0,
        rows: Sequence[int] | None = None,
        tables: Sequence[Sequence[int]] | None = None,
    ) -> Batch:
        """The batch of the scene's new tokens, of some `rows` only and in that order where they are given."""
        import torch

        chosen = range(len(self.scene.rows)) if rows is None else rows
        tables = self.tables if tables is None else tables
        content = self.content[layer]
        first = [row.context for row in self.scene.rows]
        new = (
            [content.q[i] for i in chosen],
            [content.k[i][first[i] :] for i in chosen],
            [content.v[i][first[i] :] for i in chosen],
        )
        new_q, new_k, new_v = (torch.cat([content.none[part], *rows]) for part, rows in enumerate(new))
        return self.memory.batch(
            [self.scene.rows[i] for i in chosen],
            [tables[i] for i in chosen],
            new_q,
            new_k,
            new_v,
            options,
            layer,
        )

    def forward(self, batch: Batch) -> AttentionResult:
        """The kernel's answer."""
        return self.memory.kernel.forward(self.memory.cache, batch)

    def timeline(self, label: str, note: str, bad_rows: Sequence[int] = (), bad: Sequence[int] = ()) -> Timeline:
        """The pool before and after the batch that was judged."""
        before = {i: self.tables[i] for i, row in enumerate(self.scene.rows) if row.context}
        after = dict(enumerate(self.tables))
        blocks = tuple(sorted({*bad, *(block for i in bad_rows for block in self.tables[i])}))
        wrote = tuple(
            slot // self.scene.shape.block_size
            for row, table in zip(self.scene.rows, self.tables, strict=True)
            for slot in slots_of(table, row.context, row.length, self.scene.shape.block_size)
        )
        return Timeline(
            self.memory.num_blocks,
            (
                TimelineStep("contexts written", owners(before)),
                TimelineStep(label, owners(after), tuple(dict.fromkeys(wrote)), bad=blocks, note=note),
            ),
        )


def owners(tables: dict[int, list[int]]) -> dict[str, tuple[str, ...]]:
    """Who owns which block, for a timeline."""
    found: dict[str, tuple[str, ...]] = {}
    for row, table in tables.items():
        for block in table:
            found[str(block)] = (*found.get(str(block), ()), row_name(row))
    return found


def row_name(row: int) -> str:
    """Rows are called a, b, c, ... in stories."""
    return chr(ord("a") + row) if row < 26 else f"row {row}"


def set_stage(
    subject: Subject, scene: Scene, stale: float | None = None, extra_blocks: int = 0, memory: Memory | None = None
) -> Stage:
    """Fill the pool with stale content (random, or the number `stale` everywhere), then write the contexts of all rows.

    extra_blocks: more blocks at the end of the pool than the scene has.
    """
    import torch

    tables, num_blocks = tables_of(scene)
    spec = cache_spec(subject, scene.shape, scene.layers)
    if memory is None:
        memory = Memory.create(subject, spec, num_blocks + extra_blocks, scene.fill)
    content = [random_content(scene, spec, layer) for layer in range(scene.layers)]
    slots = memory.num_blocks * spec.block_size
    made = torch.Generator().manual_seed(scene.seed + 1)
    for layer in range(scene.layers):
        k = 4 * torch.randn(slots, spec.num_kv_heads, spec.head_dim, generator=made)
        v = 4 * torch.randn(slots, spec.num_kv_heads, spec.value_dim, generator=made)
        if stale is not None:
            k, v = torch.full_like(k, stale), torch.full_like(v, stale)
        memory.store_everywhere(memory.tensor(k), memory.tensor(v), layer)
        contexts = [row.context for row in scene.rows]
        k_rows = [rows[:context] for rows, context in zip(content[layer].k, contexts, strict=True)]
        v_rows = [rows[:context] for rows, context in zip(content[layer].v, contexts, strict=True)]
        memory.store(tables, k_rows, v_rows, layer)
    return Stage(scene, memory, tables, content)


def tell(scene: Scene, tables: Sequence[Sequence[int]], precision: str, options: AttentionOptions = PLAIN) -> list[str]:
    """What a scene is, in words that can be pasted into an issue tracker."""
    shape = scene.shape
    dims = f"head_dim {shape.head_dim}" + (f" (V {shape.head_dim_v})" if shape.head_dim_v else "")
    story = [
        f"Cache in precision {precision}: block size {shape.block_size}, {shape.num_q_heads} query heads, "
        f"{shape.num_kv_heads} KV heads, {dims}" + (f", {scene.layers} layers." if scene.layers > 1 else "."),
    ]
    for i, (row, table) in enumerate(zip(scene.rows, tables, strict=True)):
        story.append(f"Sequence {row_name(i)}: {row.context} tokens in the cache, {row.new} new; blocks {list(table)}.")
    changed = [
        f"{name}={getattr(options, name)}"
        for name in ("scale", "causal", "window", "softcap", "alibi_slopes", "sinks")
        if getattr(options, name) != getattr(PLAIN, name)
    ]
    if changed:
        story.append(f"Options: {', '.join(changed)}.")
    return story


def told(judge: Callable[[Subject, C], None]) -> Callable[[Subject, C], None]:
    """`judge` of a case with a `scene`, whose story is told too when the kernel refuses or dies of what is legal."""

    def run(subject: Subject, case: C) -> None:
        try:
            judge(subject, case)
        except (CacheError, EngineError) as error:
            refused = isinstance(error, CacheError)
            message = f"a legal request was refused: {type(error).__name__}: {error}" if refused else str(error)
            tables, num_blocks = tables_of(case.scene)
            step = TimelineStep("the call that failed", owners(dict(enumerate(tables))), note=message)
            story = [*tell(case.scene, tables, subject.precision.name), f"The case: {case}.", f"{message}."]
            raise Violation(message, story=story, timeline=Timeline(num_blocks, (step,))) from error

    return run


def with_rows(scene: Scene, rows: Sequence[Row]) -> Scene:
    """The same scene with other rows."""
    return replace(scene, rows=tuple(rows))
