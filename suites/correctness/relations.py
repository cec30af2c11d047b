"""Relations that must hold between two answers of the same kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kvbench.budget import Effort
from kvbench.checks import Check, NotApplicable
from kvbench.interface import HOLE, AttentionOptions, AttentionResult, Batch
from kvbench.subject import Subject
from kvbench.suites.correctness.cases import Row, Scene, blocks_for, nothing_required, padded, scenes
from kvbench.suites.correctness.numbers import expected_of, violation
from kvbench.suites.correctness.rounding import Expected, Mismatch, mismatch
from kvbench.suites.correctness.world import (
    PLAIN,
    Stage,
    row_name,
    set_stage,
    told,
    with_rows,
)

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy
    from torch import Tensor

Poison = Literal["large", "largest", "nan", "inf", "-inf"]
LARGE = 240.0  # in the range of every dtype of a cache, fp8 e4m3 included


@dataclass(frozen=True)
class RelabellingCase:
    """A scene, compared with the same one in ascending blocks."""

    scene: Scene


@dataclass(frozen=True)
class BatchCase:
    """A scene whose rows are asked together, in another order, and alone."""

    scene: Scene


@dataclass(frozen=True)
class ChunksCase:
    """Rows whose tokens come in chunks of `sizes` (repeated as needed), then one decode step.

    scene: the rows' contexts are the tokens that come in chunks; `new` is the last step.
    """

    scene: Scene
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class DeadMemoryCase:
    """A scene with `poison` in every slot that is not live."""

    scene: Scene
    poison: Poison
    options: AttentionOptions = PLAIN


@dataclass(frozen=True)
class TablesCase:
    """A scene whose tables have `extra` columns with ids that do not matter."""

    scene: Scene
    extra: int
    garbage: Literal["others", "outside"]


def same_bits(a: AttentionResult, b: AttentionResult) -> bool:
    """Whether two outputs are equal bit by bit (NaN equals NaN)."""
    import torch

    return a.out.shape == b.out.shape and bool(torch.equal(_bits(a.out), _bits(b.out)))


def _bits(x: Tensor) -> Tensor:
    import torch

    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return (x.detach().contiguous() + 0).view(integer)


def relative_to(result: AttentionResult, expected: Expected) -> Expected:
    """`result` as what is expected, with the error of both sides."""
    return replace(expected, out=result.out.detach().double(), out_size=expected.out_size * 2**0.5)


def first_difference(a: AttentionResult, b: AttentionResult) -> Mismatch:
    """Where two outputs differ most."""
    found, right = a.out.detach().double(), b.out.detach().double()
    gap = (found - right).abs().nan_to_num(float("inf"))
    token, rest = divmod(int(gap.argmax()), gap[0].numel())
    head, element = divmod(rest, gap.shape[-1])
    return Mismatch(
        token,
        head,
        f"out[{element}] is {float(found[token, head, element])!r}, was {float(right[token, head, element])!r}",
    )


def judge_relabelling(subject: Subject, case: RelabellingCase) -> None:
    """The same sequences in other blocks give the same outputs."""
    plain = set_stage(subject, replace(case.scene, order="ascending"))
    base = plain.forward(plain.new_batch())
    moved = set_stage(subject, case.scene)
    result = moved.forward(moved.new_batch())
    label = f"the same rows in blocks {moved.tables} instead of {plain.tables}"
    _demand_same(subject, moved, base, result, label)


def _demand_same(subject: Subject, stage: Stage, base: AttentionResult, result: AttentionResult, label: str) -> None:
    """Bit by bit where batch invariance is declared, else within twice the error that the precision accounts for."""
    if same_bits(base, result):
        return
    if subject.kernel.batch_invariant:
        raise violation(stage, first_difference(result, base), subject, label)
    wrong = mismatch(AttentionResult(result.out), relative_to(base, expected_of(stage)))
    if wrong is not None:
        raise violation(stage, wrong, subject, label)


def judge_batch(subject: Subject, case: BatchCase) -> None:
    """A row's output does not depend on its neighbours."""
    stage = set_stage(subject, case.scene)
    expected = expected_of(stage)
    together = stage.forward(stage.new_batch())
    everyone = list(range(len(case.scene.rows)))
    groups = [everyone[::-1], *([row] for row in everyone)]
    for group in groups:
        result = stage.forward(stage.new_batch(rows=group))
        label = f"rows {', '.join(map(row_name, group))} {'alone' if len(group) == 1 else 'in this order'}"
        start = 0
        for row in group:
            new = case.scene.rows[row].new
            found = AttentionResult(result.out[start : start + new])
            start += new
            _demand_row(subject, stage, expected, together, found, row, f"{label}, compared with all in one batch")


def _demand_row(
    subject: Subject,
    stage: Stage,
    expected: Expected,
    together: AttentionResult,
    found: AttentionResult,
    row: int,
    label: str,
) -> None:
    first = sum(other.new for other in stage.scene.rows[:row])
    tokens = slice(first, first + stage.scene.rows[row].new)
    base = AttentionResult(together.out[tokens])
    if same_bits(base, found) or not len(base.out):
        return
    if subject.kernel.batch_invariant and base.out.shape == found.out.shape:
        wrong: Mismatch | None = first_difference(found, base)
    else:
        part = replace(expected, lse=expected.lse[tokens], lse_size=expected.lse_size[tokens])
        part = replace(part, out=expected.out[tokens], out_size=expected.out_size[tokens])
        wrong = mismatch(found, relative_to(base, part))
    if wrong is not None:
        raise violation(stage, replace(wrong, token=wrong.token + first), subject, label)


def judge_chunks(subject: Subject, case: ChunksCase) -> None:
    """Contexts that come chunk by chunk, several rows at a time, leave the same K/V and get the same outputs."""
    scene = case.scene
    stage = set_stage(subject, with_rows(scene, [Row(0, row.length) for row in scene.rows]))
    whole = expected_of(stage)
    done = [0] * len(scene.rows)
    step = 0
    while any(at < row.length for at, row in zip(done, scene.rows, strict=True)):
        _one_chunk(subject, stage, case, whole, done, step)
        step += 1


def _one_chunk(subject: Subject, stage: Stage, case: ChunksCase, whole: Expected, done: list[int], step: int) -> None:
    """The next chunk of every row that is not complete; its last `new` tokens come as one chunk."""
    import torch

    size = case.sizes[step % len(case.sizes)]
    spec, content = stage.memory.spec, stage.content[0]
    chosen: list[int] = []
    rows: list[Row] = []
    where: list[int] = []
    first = [sum(row.length for row in case.scene.rows[:i]) for i in range(len(case.scene.rows))]
    for i, row in enumerate(case.scene.rows):
        if done[i] < row.length:
            end = min(done[i] + size, row.context) if done[i] < row.context else row.length
            chosen.append(i)
            rows.append(Row(done[i], end - done[i]))
            where += range(first[i] + done[i], first[i] + end)
            done[i] = end
    spans = [slice(row.context, row.length) for row in rows]
    q, k, v = (
        torch.cat([part[i][span] for i, span in zip(chosen, spans, strict=True)])
        for part in (content.q, content.k, content.v)
    )
    tables = [stage.tables[i][: blocks_for(row.length, spec.block_size)] for i, row in zip(chosen, rows, strict=True)]
    result = stage.forward(stage.memory.batch(rows, tables, q, k, v))
    part = replace(
        whole,
        out=whole.out[where],
        out_size=whole.out_size[where],
        lse=whole.lse[where],
        lse_size=whole.lse_size[where],
    )
    wrong = mismatch(result, part, wants_lse="lse" in subject.kernel.options)
    if wrong is not None:
        chunks = ", ".join(f"{row_name(i)}: {row.context}+{row.new}" for i, row in zip(chosen, rows, strict=True))
        label = f"step {step} of a chunked prefill (tokens in the cache + chunk: {chunks})"
        raise violation(stage, replace(wrong, token=where[wrong.token]), subject, label)


def judge_dead_memory(subject: Subject, case: DeadMemoryCase) -> None:
    """What lies in slots that are not live does not change the output by a bit."""
    if case.poison != "large" and (reason := subject.limit("poison")):
        raise NotApplicable(reason)
    clean = set_stage(subject, case.scene)
    batch = clean.new_batch(case.options)
    base, again = clean.forward(batch), clean.forward(batch)
    stage = set_stage(subject, case.scene, stale=_poison(clean, case.poison))
    result = stage.forward(_left_behind(stage, stage.new_batch(case.options), _poison(clean, case.poison)))
    if same_bits(base, result):
        return
    if same_bits(base, again):
        wrong: Mismatch | None = first_difference(result, base)
    else:
        wrong = mismatch(AttentionResult(result.out), relative_to(base, expected_of(stage, case.options)))
    if wrong is not None:
        label = f"with {_poison(clean, case.poison):g} in every slot that is not live"
        raise violation(stage, wrong, subject, label, case.options)


def _left_behind(stage: Stage, batch: Batch, poison: float) -> Batch:
    """The batch with holes where a window has left whole blocks behind, and poison in these."""
    window, size = batch.options.window, stage.memory.spec.block_size
    if window is None:
        return batch
    blocks = [max(0, row.context - window + 1) // size for row in stage.scene.rows]
    tables = batch.block_tables.clone()
    for row, count in enumerate(blocks):
        tables[row, :count] = HOLE
    tokens = [count * size for count in blocks]
    k, v = (
        [rows.new_full((count, *rows.shape[1:]), poison) for rows, count in zip(half, tokens, strict=True)]
        for half in (stage.content[0].k, stage.content[0].v)
    )
    stage.memory.store(stage.tables, k, v)
    return replace(batch, block_tables=tables)


def _poison(stage: Stage, poison: Poison) -> float:
    import torch

    if poison == "large":
        return LARGE
    if poison == "largest":
        precision = stage.memory.spec.precision
        dtypes = [getattr(torch, name) for name in (precision.compute, precision.storage) if hasattr(torch, name)]
        return min(float(torch.finfo(dtype).max) for dtype in dtypes if dtype.is_floating_point)
    return float(poison)


def judge_tables(subject: Subject, case: TablesCase) -> None:
    """Columns past the blocks of a row's context are not looked at."""
    if case.garbage == "outside" and (reason := subject.limit("unchecked_ids")):
        raise NotApplicable(reason)
    import torch

    stage = set_stage(subject, case.scene)
    batch = stage.new_batch()
    base, again = stage.forward(batch), stage.forward(batch)
    wide = padded(stage.tables, case.extra)
    for i, line in enumerate(wide):
        for column in range(len(stage.tables[i]), len(line)):
            inside = (column + case.scene.seed + i) % stage.memory.num_blocks
            line[column] = inside if case.garbage == "others" else stage.memory.num_blocks + inside
    table = torch.tensor(wide, dtype=torch.int32, device=batch.block_tables.device).reshape(len(wide), -1)
    result = stage.forward(replace(batch, block_tables=table))
    if same_bits(base, result):
        return
    if same_bits(base, again):
        wrong: Mismatch | None = first_difference(result, base)
    else:
        wrong = mismatch(AttentionResult(result.out), relative_to(base, expected_of(stage)))
    if wrong is not None:
        raise violation(stage, wrong, subject, f"with tables {wide}, whose last columns no row needs")


# --------------------------------------------------------------------------------------------------------------------


def relabelling_cases(subject: Subject, effort: Effort) -> SearchStrategy[RelabellingCase]:  # noqa: ARG001
    """Scenes in any order of blocks but the ascending one."""
    import hypothesis.strategies as st

    orders = st.sampled_from(["descending", "top", "shuffled"])
    scene = st.builds(lambda scene, order: replace(scene, order=order), scenes(subject), orders)
    return st.builds(RelabellingCase, scene)


def batch_cases(subject: Subject, effort: Effort) -> SearchStrategy[BatchCase]:  # noqa: ARG001
    """Two to four rows."""
    import hypothesis.strategies as st

    return st.builds(BatchCase, scenes(subject, min_rows=2, max_rows=4, long=True))


def chunks_cases(subject: Subject, effort: Effort) -> SearchStrategy[ChunksCase]:  # noqa: ARG001
    """Chunks of one token, of a block, one more and one less, and mixtures."""
    import hypothesis.strategies as st

    @st.composite
    def draw_case(draw: DrawFn) -> ChunksCase:
        scene = draw(scenes(subject, max_rows=2))
        scene = with_rows(scene, [Row(row.context, max(row.new, 1)) for row in scene.rows])
        bs = scene.shape.block_size
        sizes = sorted({max(1, size) for size in (bs - 1, bs, bs + 1, 2 * bs, 7, 17)})
        # Several sizes at most, and none so small that a case takes dozens of calls.
        chosen = draw(st.lists(st.sampled_from([size for size in sizes if size > 3]), min_size=1, max_size=3))
        return ChunksCase(scene, tuple(chosen))

    return draw_case()


def dead_memory_cases(subject: Subject, effort: Effort) -> SearchStrategy[DeadMemoryCase]:  # noqa: ARG001
    """Every poison that the subject does not exclude, with and without a window."""
    import hypothesis.strategies as st

    poisons: list[Poison] = ["large", *(() if subject.limit("poison") else ("nan", "inf", "-inf", "largest"))]
    windows = [PLAIN, AttentionOptions(window=5)] if "window" in subject.kernel.options else [PLAIN]
    return st.builds(DeadMemoryCase, scenes(subject), st.sampled_from(poisons), st.sampled_from(windows))


def tables_cases(subject: Subject, effort: Effort) -> SearchStrategy[TablesCase]:  # noqa: ARG001
    """Tables that are longer than any row needs."""
    import hypothesis.strategies as st

    garbage = ["others", *(() if subject.limit("unchecked_ids") else ("outside",))]
    return st.builds(TablesCase, scenes(subject), st.integers(1, 4), st.sampled_from(garbage))


RELABELLING = Check(
    name="correctness.relabelling",
    about="the same sequences in other physical blocks get the same outputs",
    half="kernel",
    case_type=RelabellingCase,
    judge=told(judge_relabelling),
    requires=nothing_required,
    cases=relabelling_cases,
)

BATCH = Check(
    name="correctness.batch",
    about="a row's output is the same alone, in a batch and in another order",
    half="kernel",
    case_type=BatchCase,
    judge=told(judge_batch),
    requires=nothing_required,
    cases=batch_cases,
)

CHUNKS = Check(
    name="correctness.chunks",
    about="a prompt that is computed in chunks gets the same outputs and leaves the same K/V",
    half="kernel",
    case_type=ChunksCase,
    judge=told(judge_chunks),
    requires=nothing_required,
    cases=chunks_cases,
)

DEAD_MEMORY = Check(
    name="correctness.dead_memory",
    about="what lies in slots that are not live does not change the output by a bit",
    half="kernel",
    case_type=DeadMemoryCase,
    judge=told(judge_dead_memory),
    requires=nothing_required,
    cases=dead_memory_cases,
)

TABLES = Check(
    name="correctness.tables",
    about="what stands in a block table past the blocks of a row's context is not looked at",
    half="kernel",
    case_type=TablesCase,
    judge=told(judge_tables),
    requires=nothing_required,
    cases=tables_cases,
)
