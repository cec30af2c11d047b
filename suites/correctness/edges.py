"""Input at the edge and beyond it: nothing to do, blocks that are not there, shapes that are not declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from kvbench.budget import Effort
from kvbench.canary import misreads, probe_queries
from kvbench.checks import Check, NotApplicable, Violation
from kvbench.errors import CacheError
from kvbench.interface import HOLE, NO_SLOT, AttentionOptions, AttentionResult, Batch
from kvbench.subject import EngineError, Subject
from kvbench.suites.correctness.cases import CODE_DIMS, Fill, Order, Row, Scene, Shape, needs_operation, scenes, shapes
from kvbench.suites.correctness.content import demand_content, occupied_pool
from kvbench.suites.correctness.numbers import demand, draw_options, expected_of
from kvbench.suites.correctness.probes import Pool
from kvbench.suites.correctness.rounding import expect
from kvbench.suites.correctness.world import PLAIN, row_name, set_stage, slots_of, tell, told

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

Breach = Literal["hole", "slot", "block"]
BREACHES: tuple[Breach, ...] = ("hole", "slot", "block")
ORDERS: tuple[Order, ...] = ("descending", "ascending", "shuffled")
FILLS: tuple[Fill, ...] = ("forward", "write")


@dataclass(frozen=True)
class BoundsCase:
    """A full pool and a call that names a place that is not there.

    breach: "hole", a new token stands where its row's table has a hole; "slot", a slot outside the pool; "block", a
    table names a block outside the pool. by: how far outside, or -1, -2, ... below it.
    """

    scene: Scene
    breach: Breach
    by: int = 0
    how: Fill = "forward"


@dataclass(frozen=True)
class EmptyCase:
    """A scene some of whose rows, or all, have nothing new, nothing cached, or neither.

    beyond: query tokens of the last row that stand before the start of its context: they see nothing.
    """

    scene: Scene
    beyond: int = 0


@dataclass(frozen=True)
class UndeclaredCase:
    """A scene, and options, of which the subject declares at least one thing not."""

    scene: Scene
    options: AttentionOptions = PLAIN


# --------------------------------------------------------------------------------------------------------------------
# Bounds
# --------------------------------------------------------------------------------------------------------------------


def judge_bounds(subject: Subject, case: BoundsCase) -> None:
    """A call that names a place outside what is there is refused, or at least harms nobody."""
    if reason := subject.limit("unchecked_ids"):
        raise NotApplicable(reason)
    if case.how == "write" and (reason := needs_operation("write", subject)):
        raise NotApplicable(reason)
    pool, identities = occupied_pool(subject, case.scene)
    batch, label, stranger = _breach(pool, case, identities)
    try:
        if case.how == "write":
            pool.memory.kernel.write(pool.memory.cache, batch.k, batch.v, batch.slot_mapping)
            out = None
        else:
            out = pool.memory.kernel.forward(pool.memory.cache, batch).out.detach().float().cpu().numpy()
    except (CacheError, EngineError):
        demand_content(pool, subject, f"{label} (refused)")
        return
    wrong = None if out is None else _wrong_answer(pool, out, stranger)
    if out is not None and case.breach == "slot" and wrong is None:
        # An engine that finds slots by its tables has put the token where it belongs.
        victim, context = len(case.scene.rows) - 1, case.scene.rows[-1].context
        pool.record(slots_of(pool.tables[victim], context, context + 1, pool.block_size), [stranger], 0)
    demand_content(pool, subject, f"{label} (not refused)")
    if wrong is None and (out is None or case.breach != "block"):
        return
    note = f"{label} was answered{f' with {wrong}' if wrong else ''} instead of refused"
    raise Violation(
        note,
        story=[*tell(case.scene, pool.tables, subject.precision.name), f"{note}."],
        timeline=pool.timeline(label, note, []),
    )


def _wrong_answer(pool: Pool, out: npt.NDArray[np.float32], stranger: int) -> str | None:
    """What came back instead of the offending token, which an engine with tables of its own may have placed rightly."""
    spec = pool.memory.spec
    wanted = np.full((1, spec.num_q_heads), stranger, dtype=np.uint64)
    if out.shape != (1, spec.num_q_heads, spec.value_dim):
        return f"shape {list(out.shape)}"
    wrong = misreads(out, wanted, pool.book)
    return wrong[0].words if wrong else None


def _breach(pool: Pool, case: BoundsCase, identities: list[list[int]]) -> tuple[Batch, str, int]:
    """The offending batch, of the last row alone and one new token; what is wrong with it; the token's identity."""
    spec, victim = pool.memory.spec, len(case.scene.rows) - 1
    context = case.scene.rows[victim].context
    stranger = [identities[victim][-1] ^ 0x5555]
    pool.book.add(stranger, [f"the token that {row_name(victim)} had no place for"])
    k, v = pool.rows_of(stranger, 0)
    q = pool.memory.tensor(
        probe_queries(
            np.full((1, spec.num_q_heads), stranger[0], dtype=np.uint64), spec.num_kv_heads, spec.head_dim, 99
        )
    )
    table = list(pool.tables[victim])
    row = Row(context, 1)
    if case.breach == "hole":
        table[context // spec.block_size] = HOLE
        slot = HOLE * spec.block_size + context % spec.block_size
        label = f"a token at position {context} of {row_name(victim)}, where its table {table} has a hole"
    elif case.breach == "slot":
        slots = pool.memory.num_blocks * spec.block_size
        slot = slots + case.by if case.by >= 0 else NO_SLOT + case.by
        label = f"a token written to slot {slot} of a pool of {slots} slots"
    else:
        outside = pool.memory.num_blocks + case.by if case.by >= 0 else HOLE + case.by
        table[0] = outside
        slot = table[context // spec.block_size] * spec.block_size + context % spec.block_size
        label = (
            f"a token of {row_name(victim)}, whose table {table} names a block outside 0..{pool.memory.num_blocks - 1}"
        )
    batch = pool.memory.batch([row], [table], q, k, v)
    mapping = batch.slot_mapping.new_tensor([slot])
    return replace(batch, slot_mapping=mapping), label, stranger[0]


def bounds_cases(subject: Subject, effort: Effort) -> SearchStrategy[BoundsCase]:  # noqa: ARG001
    """Full pools whose first and last blocks belong to rows; holes first."""
    import hypothesis.strategies as st

    @st.composite
    def draw_case(draw: DrawFn) -> BoundsCase:
        shape = draw(shapes(subject, CODE_DIMS))
        bs = shape.block_size
        breach: Breach = draw(st.sampled_from(BREACHES))
        # The last row's next token begins a block or lies within one; its table has room for it.
        context = draw(st.sampled_from([bs, 2 * bs, 2 * bs + bs // 2]))
        order = draw(st.sampled_from(ORDERS))
        scene = Scene(shape, (Row(2 * bs, 0), Row(context, 1)), order=order, spare=0, seed=draw(st.integers(0, 99)))
        writes = breach == "slot" and not needs_operation("write", subject)
        how: Fill = draw(st.sampled_from(FILLS)) if writes else "forward"
        return BoundsCase(scene, breach, draw(st.sampled_from([0, 1, -1, -bs, 7, 1 << 20])), how)

    return draw_case()


# --------------------------------------------------------------------------------------------------------------------
# Nothing to do
# --------------------------------------------------------------------------------------------------------------------


def judge_empty(subject: Subject, case: EmptyCase) -> None:
    """Rows with nothing new or nothing cached, and batches without rows, get what they should and disturb nobody."""
    if reason := subject.limit("empty_rows"):
        raise NotApplicable(reason)
    if case.beyond and (reason := subject.limit("full_context_queries")):
        raise NotApplicable(reason)
    stage = set_stage(subject, case.scene)
    batch = stage.new_batch()
    if case.beyond:
        _ask_beyond(subject, case, batch)
        return
    label = f"forward of {len(case.scene.rows)} rows with {[row.new for row in case.scene.rows]} new tokens"
    demand(stage, stage.forward(batch), expected_of(stage), subject, label)


def _ask_beyond(subject: Subject, case: EmptyCase, batch: Batch) -> None:
    """The last row's first `beyond` queries stand before its context: out 0, and the others as without them."""
    import torch

    stage = set_stage(subject, case.scene)
    row, content, n = case.scene.rows[-1], stage.content[0], case.beyond
    last = len(batch.q) - row.new
    q, k, v = (torch.cat([x[:last], x.new_ones(n, *x.shape[1:]), x[last:]]) for x in (batch.q, batch.k, batch.v))
    none = batch.slot_mapping.new_full((n,), NO_SLOT)
    starts = batch.query_start_loc.clone()
    starts[-1] += n
    # The row has no cached context then: its queries are as many as its keys, and `beyond` more.
    wide = replace(
        batch,
        q=q,
        k=k,
        v=v,
        query_start_loc=starts,
        slot_mapping=torch.cat([batch.slot_mapping[:last], none, batch.slot_mapping[last:]]),
    )
    queries = (*content.q[:-1], q[last:])
    expected = expect(stage.memory.spec, queries, content.k, content.v, PLAIN, case.scene.seed)
    rows = (*case.scene.rows[:-1], Row(-n, row.new + n))
    label = f"forward with {n} more queries than {row_name(len(rows) - 1)} has tokens"
    demand(stage, stage.forward(wide), expected, subject, label, rows=rows)


def empty_cases(subject: Subject, effort: Effort) -> SearchStrategy[EmptyCase]:  # noqa: ARG001
    """No row at all, rows of nothing, and mixtures with ordinary ones."""
    import hypothesis.strategies as st

    @st.composite
    def draw_case(draw: DrawFn) -> EmptyCase:
        scene = draw(scenes(subject, max_rows=3))
        rows = [draw(st.sampled_from([row, Row(0, 0), Row(row.context, 0), Row(0, row.new)])) for row in scene.rows]
        rows = rows if draw(st.sampled_from([True, True, True, False])) else []
        beyond = 0
        if rows and not subject.limit("full_context_queries"):
            beyond = draw(st.sampled_from([0, 0, 1, 3]))
        if beyond:
            rows[-1] = Row(0, max(rows[-1].new, 1))
        return EmptyCase(replace(scene, rows=tuple(rows)), beyond)

    return draw_case()


# --------------------------------------------------------------------------------------------------------------------
# Not declared
# --------------------------------------------------------------------------------------------------------------------

USUAL = Shape(4, 2, 64, 16)


def undeclared_cases_of(subject: Subject) -> list[tuple[Shape, AttentionOptions | str]]:
    """What the subject does not declare: a shape, or the name of an option."""
    kernel = subject.kernel
    ratio = kernel.gqa_ratios.among([2, 1, 4])[0]
    shape = Shape(2 * ratio, 2, kernel.head_dims.among([64, 32, 128])[0], kernel.block_sizes.among([16, 8, 32])[0])
    found: list[tuple[Shape, AttentionOptions | str]] = []
    found += [(replace(shape, head_dim=n), PLAIN) for n in (72, 48, 20, 320) if n not in kernel.head_dims]
    found += [(replace(shape, block_size=n), PLAIN) for n in (7, 16, 24, 1) if n not in kernel.block_sizes]
    found += [(replace(shape, num_q_heads=2 * n), PLAIN) for n in (3, 5, 1, 8) if n not in kernel.gqa_ratios]
    if not kernel.separate_value_dim:
        found.append((replace(shape, head_dim_v=shape.head_dim // 2), PLAIN))
    options = ("scale", "non_causal", "window", "softcap", "alibi", "sinks")
    return found + [(shape, name) for name in options if name not in kernel.options]


def judge_undeclared(subject: Subject, case: UndeclaredCase) -> None:
    """What is not declared is refused, or answered rightly."""
    try:
        stage = set_stage(subject, case.scene)
        result: AttentionResult = stage.forward(stage.new_batch(case.options))
    except (CacheError, EngineError):
        return
    label = "an input that is not declared was neither refused nor answered rightly"
    demand(stage, result, expected_of(stage, case.options), subject, label, case.options)


def undeclared_cases(subject: Subject, effort: Effort) -> SearchStrategy[UndeclaredCase]:  # noqa: ARG001
    """One undeclared thing at a time."""
    import hypothesis.strategies as st

    @st.composite
    def draw_case(draw: DrawFn) -> UndeclaredCase:
        shape, what = draw(st.sampled_from(undeclared_cases_of(subject)))
        context = draw(st.sampled_from([shape.block_size + 1, 0, 3]))
        scene = Scene(shape, (Row(context, draw(st.sampled_from([1, 3, 20]))),), seed=draw(st.integers(0, 99)))
        return UndeclaredCase(scene, what if isinstance(what, AttentionOptions) else draw_options(draw, scene, {what}))

    return draw_case()


def _everything_declared(subject: Subject) -> str | None:
    return None if undeclared_cases_of(subject) else "every shape and option is declared"


def _limited(limit: Literal["unchecked_ids", "empty_rows"]) -> Callable[[Subject], str | None]:
    return lambda subject: subject.limit(limit)


BOUNDS = Check(
    name="correctness.bounds",
    about="holes, slots and blocks outside the pool are refused and overwrite nobody's rows",
    half="kernel",
    case_type=BoundsCase,
    judge=told(judge_bounds),
    requires=_limited("unchecked_ids"),
    cases=bounds_cases,
)

EMPTY = Check(
    name="correctness.empty",
    about="rows with nothing new, nothing cached or nothing visible, and batches of no rows",
    half="kernel",
    case_type=EmptyCase,
    judge=told(judge_empty),
    requires=_limited("empty_rows"),
    cases=empty_cases,
)

UNDECLARED = Check(
    name="correctness.undeclared",
    about="what is not declared is refused or answered rightly, never with garbage",
    half="kernel",
    case_type=UndeclaredCase,
    judge=told(judge_undeclared),
    requires=_everything_declared,
    cases=undeclared_cases,
)
