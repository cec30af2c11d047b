"""Outputs against float64: plain attention, and each option."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from kvbench.budget import Effort
from kvbench.checks import Check, NotApplicable, Violation
from kvbench.interface import AttentionOptions, AttentionResult, Batch
from kvbench.subject import Subject
from kvbench.suites.correctness.cases import Row, Scene, nothing_required, scenes
from kvbench.suites.correctness.rounding import Expected, Mismatch, expect, mismatch
from kvbench.suites.correctness.world import PLAIN, Stage, row_name, set_stage, tell, told

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

Through = Literal["forward", "attend", "plan"]


@dataclass(frozen=True)
class NumbersCase:
    """A scene, and which operation answers: `forward`, or `attend` or `plan` where they are declared.

    sunk: adds a large negative number to all scores of a row, which softmax must not notice.
    packed: q, k and v are views of one buffer, as a fused projection leaves them.
    """

    scene: Scene
    through: Through = "forward"
    sunk: bool = False
    packed: bool = False


@dataclass(frozen=True)
class OptionsCase:
    """A scene, answered under options."""

    scene: Scene
    options: AttentionOptions


def expected_of(stage: Stage, options: AttentionOptions = PLAIN, layer: int = 0) -> Expected:
    """What the scene's new tokens should get."""
    content = stage.content[layer]
    return expect(stage.memory.spec, content.q, content.k, content.v, options, stage.scene.seed)


def demand(
    stage: Stage,
    result: AttentionResult,
    expected: Expected,
    subject: Subject,
    label: str,
    options: AttentionOptions = PLAIN,
    rows: Sequence[Row] | None = None,
) -> None:
    """Raise a `Violation` unless `result` is what is expected. rows: of the batch, where not the scene's."""
    wrong = mismatch(result, expected, wants_lse="lse" in subject.kernel.options)
    if wrong is not None:
        raise violation(stage, wrong, subject, label, options, rows)


def violation(
    stage: Stage,
    wrong: Mismatch,
    subject: Subject,
    label: str,
    options: AttentionOptions = PLAIN,
    rows: Sequence[Row] | None = None,
) -> Violation:
    """A mismatch in words, with where it is."""
    rows = stage.scene.rows if rows is None else rows
    row, place = locate(rows, wrong.token)
    where = f"{row_name(row)}, token {place} of {rows[row].length}, query head {wrong.head}" if rows else "the batch"
    note = f"{where}: {wrong.words}"
    return Violation(
        f"{label}: {note}",
        story=[*tell(stage.scene, stage.tables, subject.precision.name, options), f"{label}; {note}."],
        timeline=stage.timeline(label, note, bad_rows=[row] if rows else []),
    )


def locate(rows: Sequence[Row], token: int) -> tuple[int, int]:
    """The row that a packed token belongs to, and its position in the sequence."""
    for i, row in enumerate(rows):
        if token < row.new:
            return i, row.context + token
        token -= row.new
    return 0, token


# --------------------------------------------------------------------------------------------------------------------


def _sink_scores(stage: Stage) -> None:
    """Give all keys of a row a common part that the queries point away from: scores near -10**5, differences kept."""
    import torch

    spec = stage.memory.spec
    depth = 1e5 / spec.head_dim**0.5
    for layer, content in enumerate(stage.content):
        k = [rows.index_fill(-1, torch.tensor([0]), 1.0) for rows in content.k]
        q = [rows.index_fill(-1, torch.tensor([0]), -depth * spec.head_dim) for rows in content.q]
        stage.content[layer] = replace(content, q=tuple(q), k=tuple(k))
        contexts = [row.context for row in stage.scene.rows]
        stage.memory.store(
            stage.tables,
            [rows[:context] for rows, context in zip(k, contexts, strict=True)],
            [rows[:context] for rows, context in zip(content.v, contexts, strict=True)],
            layer,
        )


def _answer(stage: Stage, batch: Batch, through: Through) -> AttentionResult:
    if through == "plan":
        run = stage.memory.kernel.plan(stage.memory.cache, batch)
        run()
        return run()
    result = stage.forward(batch)
    return stage.memory.kernel.attend(stage.memory.cache, batch) if through == "attend" else result


def judge_numbers(subject: Subject, case: NumbersCase) -> None:
    """Compare one batch with float64."""
    if case.through != "forward" and case.through not in subject.kernel.operations:
        raise NotApplicable(f"operation {case.through} is not declared")
    if case.sunk and not _can_sink(subject):
        raise NotApplicable("scores of -10**5 need float32 arithmetic and unquantised storage")
    stage = set_stage(subject, case.scene)
    if case.sunk:
        _sink_scores(stage)
    for layer in range(case.scene.layers):
        batch = stage.new_batch(layer=layer)
        batch = _packed(batch) if case.packed else batch
        label = f"{case.through} of {len(case.scene.rows)} rows" + (f" in layer {layer}" if layer else "")
        demand(stage, _answer(stage, batch, case.through), expected_of(stage, layer=layer), subject, label)


def _packed(batch: Batch) -> Batch:
    """The same tokens as views of one buffer, whose other elements are not numbers."""
    import torch

    parts = (batch.q, batch.k, batch.v)
    widest = max(part.shape[2] for part in parts)
    heads = [part.shape[1] for part in parts]
    buffer = torch.full((len(batch.q), sum(heads), widest + 1), torch.nan, dtype=batch.q.dtype, device=batch.q.device)
    views = [rows[..., : part.shape[2]] for rows, part in zip(torch.split(buffer, heads, 1), parts, strict=True)]
    for view, part in zip(views, parts, strict=True):
        view.copy_(part)
    return replace(batch, q=views[0], k=views[1], v=views[2])


def _can_sink(subject: Subject) -> bool:
    precision = subject.precision
    return {precision.compute, precision.storage, precision.arithmetic or "float32"} == {"float32"}


def judge_options(subject: Subject, case: OptionsCase) -> None:
    """Compare one batch under options with float64."""
    for name in used_options(case.options):
        if name not in subject.kernel.options:
            raise NotApplicable(f"option {name} is not declared")
    stage = set_stage(subject, case.scene)
    result = stage.forward(stage.new_batch(case.options))
    label = f"forward with {', '.join(used_options(case.options)) or 'no option'}"
    demand(stage, result, expected_of(stage, case.options), subject, label, case.options)


def used_options(options: AttentionOptions) -> list[str]:
    """Names of the options, as they are declared, that differ from the default."""
    changed = {
        "scale": options.scale is not None,
        "non_causal": not options.causal,
        "window": options.window is not None,
        "softcap": options.softcap is not None,
        "alibi": options.alibi_slopes is not None,
        "sinks": options.sinks is not None,
    }
    return [name for name, used in changed.items() if used]


def numbers_cases(subject: Subject, effort: Effort) -> SearchStrategy[NumbersCase]:  # noqa: ARG001
    """Scenes of all kinds, a few of them long."""
    import hypothesis.strategies as st

    throughs = ["forward", *(name for name in ("attend", "plan") if name in subject.kernel.operations)]
    return st.builds(
        NumbersCase,
        scenes(subject, max_layers=2, long=True),
        st.sampled_from(throughs),
        st.sampled_from([False, False, True]) if _can_sink(subject) else st.just(False),
        st.booleans(),
    )


def options_cases(subject: Subject, effort: Effort) -> SearchStrategy[OptionsCase]:  # noqa: ARG001
    """Any of the declared options, alone and together."""
    import hypothesis.strategies as st

    @st.composite
    def draw_case(draw: DrawFn) -> OptionsCase:
        scene = draw(scenes(subject, max_rows=3, long=True))
        if draw(st.sampled_from([False, False, True])):
            # Engines take another path where every row decodes.
            scene = replace(scene, rows=tuple(Row(row.context, 1) for row in scene.rows))
        declared = sorted(subject.kernel.options - {"lse"})
        chosen = {name for name in declared if draw(st.booleans())} or {draw(st.sampled_from(declared))}
        return OptionsCase(scene, draw_options(draw, scene, chosen))

    return draw_case()


def draw_options(draw: DrawFn, scene: Scene, chosen: Collection[str]) -> AttentionOptions:
    """Options with values at which their faults show: small caps, steep slopes, windows at boundaries."""
    import hypothesis.strategies as st

    heads, bs = scene.shape.num_q_heads, scene.shape.block_size
    values: dict[str, Any] = {}
    if "scale" in chosen:
        values["scale"] = draw(st.sampled_from([1.0, 0.5, 2.0])) * scene.shape.head_dim**-0.5
    if "non_causal" in chosen and "window" not in chosen:
        values["causal"] = False
    if "window" in chosen:
        contexts = [row.context for row in scene.rows]
        sizes = {1, bs - 1, bs, bs + 1, *contexts, *(context + 1 for context in contexts)}
        values["window"] = draw(st.sampled_from(sorted(size for size in sizes if size > 0)))
    if "softcap" in chosen:
        values["softcap"] = draw(st.sampled_from([5.0, 1.0, 30.0]))
    if "alibi" in chosen:
        steepest = draw(st.sampled_from([1.0, 0.25]))
        values["alibi_slopes"] = tuple(steepest * 2.0 ** -(head % 5) for head in range(heads))
    if "sinks" in chosen:
        values["sinks"] = tuple(1.5 - head % 4 for head in range(heads))
    return AttentionOptions(**values)


def _options_required(subject: Subject) -> str | None:
    return None if subject.kernel.options - {"lse"} else "no option is declared"


NUMBERS = Check(
    name="correctness.numbers",
    about="outputs equal float64 attention within what the precision inherently costs",
    half="kernel",
    case_type=NumbersCase,
    judge=told(judge_numbers),
    requires=nothing_required,
    cases=numbers_cases,
)

OPTIONS = Check(
    name="correctness.options",
    about="scale, window, softcap, ALiBi, sinks and non-causal attention do what they say, with and without a context",
    half="kernel",
    case_type=OptionsCase,
    judge=told(judge_options),
    requires=_options_required,
    cases=options_cases,
)
