"""Which rows are read, written and copied, by the content canary."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvbench.budget import Effort
from kvbench.canary import chain_identities, distinct_codes, misreads, probe_positions, probe_queries
from kvbench.checks import Check, NotApplicable, Violation
from kvbench.interface import NO_SLOT
from kvbench.subject import Subject
from kvbench.suites.correctness.cases import (
    CODE_DIMS,
    Row,
    Scene,
    needs_operation,
    nothing_required,
    scenes,
    shapes,
)
from kvbench.suites.correctness.numbers import expected_of, violation
from kvbench.suites.correctness.probes import Pool, fill_pool, first_words
from kvbench.suites.correctness.rounding import mismatch
from kvbench.suites.correctness.world import row_name, set_stage, slots_of, tell, told

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy
    from torch import Tensor

TURNS = 3
"""Probing calls a canary case: all heads and tokens probe other positions in each."""


@dataclass(frozen=True)
class CanaryCase:
    """A scene whose rows are read back by content."""

    scene: Scene


@dataclass(frozen=True)
class WriteCase:
    """New tokens written into a full pool.

    how: through `forward`, or `write`. skipped: entries of the slot mapping that are NO_SLOT. excess: rows of k and v
    past the end of the slot mapping. Both only with `write`.
    """

    scene: Scene
    how: Literal["forward", "write"] = "forward"
    skipped: int = 0
    excess: int = 0


@dataclass(frozen=True)
class CopyCase:
    """Block copies in a full pool: (source, target) as places among the scene's blocks, in order."""

    scene: Scene
    pairs: tuple[tuple[int, int], ...]


def own_identities(scene: Scene) -> list[list[int]]:
    """The identities of each row's tokens."""
    return [
        chain_identities([(scene.seed * 31 + 7 * i + place) % 997 for place in range(row.length)], f"row {i}")
        for i, row in enumerate(scene.rows)
    ]


def occupied_pool(subject: Subject, scene: Scene) -> tuple[Pool, list[list[int]]]:
    """A full pool with the contexts of the scene's rows in it, and the identities of all rows' tokens."""
    pool, identities = fill_pool(subject, scene), own_identities(scene)
    for i, ids in enumerate(identities):
        pool.book.add_sequence(ids, row_name(i))
    for layer in range(scene.layers):
        rows = [pool.rows_of(ids[: row.context], layer) for row, ids in zip(scene.rows, identities, strict=True)]
        pool.memory.store(pool.tables, [k for k, _ in rows], [v for _, v in rows], layer)
        for row, ids, table in zip(scene.rows, identities, pool.tables, strict=True):
            pool.record(slots_of(table, 0, row.context, pool.block_size), ids[: row.context], layer)
        if not pool.memory.writes:
            pool.wrote([row.context for row in scene.rows], layer)
    return pool, identities


# --------------------------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------------------------


def judge_canary(subject: Subject, case: CanaryCase) -> None:
    """Every head of every new token reads the row it aims at."""
    scene = case.scene
    pool, identities = occupied_pool(subject, scene)
    for layer in range(scene.layers):
        new = [ids[row.context :] for row, ids in zip(scene.rows, identities, strict=True)]
        k, v = pool.rows_of([identity for ids in new for identity in ids], layer)
        for turn in range(TURNS):
            _read(subject, pool, identities, k, v, layer, turn)


def _read(
    subject: Subject, pool: Pool, identities: list[list[int]], k: Tensor, v: Tensor, layer: int, turn: int
) -> None:
    """One probing call, with the violation if a row other than the expected one comes back."""
    scene, spec = pool.scene, pool.memory.spec
    expected, alone, places = [], [], []
    for i, row in enumerate(scene.rows):
        visible = [row.context + place + 1 for place in range(row.new)]
        positions = probe_positions([0] * row.new, visible, spec.num_q_heads, spec.num_kv_heads, turn)
        ids = (
            np.array(identities[i], dtype=np.uint64)[positions]
            if row.new
            else np.zeros((0, spec.num_q_heads), np.uint64)
        )
        expected.append(ids)
        alone.append(distinct_codes(ids, identities[i] or [0], spec.head_dim))
        places += [(i, row.context + place, positions[place]) for place in range(row.new)]
    wanted = np.concatenate(expected)
    longest = max(row.length for row in scene.rows)
    q = pool.memory.tensor(probe_queries(wanted, spec.num_kv_heads, spec.head_dim, max(longest, 1), layer))
    batch = pool.memory.batch(scene.rows, pool.tables, q, k, v, layer=layer)
    out = pool.memory.kernel.forward(pool.memory.cache, batch).out.detach().float().cpu().numpy()
    if out.shape[:2] != wanted.shape:
        raise Violation(f"out has shape {list(out.shape)} for {wanted.shape[0]} tokens and {wanted.shape[1]} heads")
    counted = np.concatenate(alone)
    for miss in misreads(out, wanted, pool.book, layer):
        if not counted[miss.token, miss.head]:
            continue
        at, position, probed = places[miss.token]
        aimed = int(probed[miss.head])
        note = (
            f"query head {miss.head} of token {position} of {row_name(at)} looks at position {aimed} "
            f"and reads {miss.words}"
        )
        slot = slots_of(pool.tables[at], aimed, aimed + 1, pool.block_size)
        raise Violation(
            note,
            story=[*tell(scene, pool.tables, subject.precision.name), f"{note}."],
            timeline=pool.timeline(f"forward in layer {layer}", note, slot),
        )


# --------------------------------------------------------------------------------------------------------------------
# Writing
# --------------------------------------------------------------------------------------------------------------------


def judge_write_set(subject: Subject, case: WriteCase) -> None:
    """After a write, the declared slots hold the new rows and all others what they held."""
    if case.how == "write" and (reason := needs_operation("write", subject)):
        raise NotApplicable(reason)
    scene = case.scene
    pool, identities = occupied_pool(subject, scene)
    layer = scene.layers - 1
    slots = [
        slot
        for row, table in zip(scene.rows, pool.tables, strict=True)
        for slot in slots_of(table, row.context, row.length, pool.block_size)
    ]
    new = [identity for row, ids in zip(scene.rows, identities, strict=True) for identity in ids[row.context :]]
    if case.how == "write":
        label = _write(pool, case, slots, new, layer)
    else:
        label = f"forward of {len(new)} new tokens"
        k, v = pool.rows_of(new, layer)
        spec = pool.memory.spec
        q = pool.memory.tensor(np.ones((len(new), spec.num_q_heads, spec.head_dim), dtype=np.float32))
        pool.memory.kernel.forward(pool.memory.cache, pool.memory.batch(scene.rows, pool.tables, q, k, v, layer=layer))
        pool.record(slots, new, layer)
        pool.wrote([row.length if row.new else 0 for row in scene.rows], layer)
    demand_content(pool, subject, label, wrote=slots)


def _write(pool: Pool, case: WriteCase, slots: Sequence[int], new: Sequence[int], layer: int) -> str:
    """Write through `write`, with padding between the slots and rows past their end."""
    import torch

    chance = random.Random(case.scene.seed)
    lines: list[tuple[int, int]] = list(zip(slots, new, strict=True))
    padding = chain_identities(range(case.skipped + case.excess), "padding")
    pool.book.add(padding, (f"padded row {i}" for i in range(len(padding))))
    for identity in padding[: case.skipped]:
        lines.insert(chance.randint(0, len(lines)), (NO_SLOT, identity))
    k, v = pool.rows_of([*(identity for _, identity in lines), *padding[case.skipped :]], layer)
    mapping = torch.tensor([slot for slot, _ in lines], dtype=torch.int64, device=pool.memory.spec.device)
    pool.memory.kernel.write(pool.memory.cache, k, v, mapping, layer)
    pool.record(slots, new, layer)
    return f"write of {len(slots)} rows, {case.skipped} entries NO_SLOT, {case.excess} rows without a slot"


def demand_content(pool: Pool, subject: Subject, label: str, wrote: Sequence[int] = ()) -> None:
    """Raise a `Violation` unless every slot of the pool holds what it should."""
    if not (wrong := pool.misplaced()):
        return
    note = first_words(pool, wrong)
    raise Violation(
        f"after {label}, {note}",
        story=[
            *tell(pool.scene, pool.tables, subject.precision.name),
            f"All {pool.memory.num_blocks} blocks hold known rows; blocks {pool.scratch} are used to read the pool.",
            f"{label[0].upper()}{label[1:]}.",
            *(f"Looking for the row of {pool.slot_name(miss.slot)} finds {miss.words}." for miss in wrong[:5]),
        ],
        timeline=pool.timeline(
            label, note, [miss.slot for miss in wrong], sorted({slot // pool.block_size for slot in wrote})
        ),
    )


# --------------------------------------------------------------------------------------------------------------------
# Copying
# --------------------------------------------------------------------------------------------------------------------


def judge_copies(subject: Subject, case: CopyCase) -> None:
    """Copied blocks hold what their sources held, all layers, K and V; nothing else changes."""
    if reason := needs_operation("copy_blocks", subject):
        raise NotApplicable(reason)
    pool, _ = occupied_pool(subject, case.scene)
    blocks = [block for block in range(pool.memory.num_blocks) if block not in pool.scratch]
    pairs = [(blocks[source % len(blocks)], blocks[target % len(blocks)]) for source, target in case.pairs]
    pairs = [(source, target) for source, target in pairs if source != target]
    pool.memory.kernel.copy_blocks(pool.memory.cache, pairs)
    bs = pool.block_size
    for source, target in pairs:
        for holds in pool.holds:
            holds[target * bs : (target + 1) * bs] = holds[source * bs : (source + 1) * bs]
    if pairs:
        # Copied rows are not unique any more: blocks that hold the same are read one at a time.
        _demand_copies(pool, subject, pairs)
        _demand_copied_numbers(subject, case)


def _demand_copies(pool: Pool, subject: Subject, pairs: Sequence[tuple[int, int]]) -> None:
    targets = {target for _, target in pairs}
    label = f"copying blocks {', '.join(f'{source} to {target}' for source, target in pairs)}"
    demand_content(replace(pool, hidden=tuple(targets)), subject, label)
    for target in sorted(targets):
        others = tuple(block for block in range(pool.memory.num_blocks) if block not in (target, *pool.scratch))
        demand_content(replace(pool, hidden=others), subject, label, wrote=[target * pool.block_size])


def _demand_copied_numbers(subject: Subject, case: CopyCase) -> None:
    """Copies carry what belongs to a row besides its codes: rows of unequal magnitude read the same after a copy."""
    rows = (Row(case.scene.shape.block_size, 1),)
    scene = replace(case.scene, rows=rows, layers=1, order="ascending", spare=3)
    stage = set_stage(subject, scene)
    source, target = stage.tables[0][0], stage.memory.num_blocks - 1
    stage.memory.kernel.copy_blocks(stage.memory.cache, [(source, target)])
    stage.tables[0][0] = target
    result = stage.forward(stage.new_batch())
    if (wrong := mismatch(result, expected_of(stage))) is not None:
        raise violation(stage, wrong, subject, f"after copying block {source} to {target}")


# --------------------------------------------------------------------------------------------------------------------
# Strategies and checks
# --------------------------------------------------------------------------------------------------------------------


def canary_cases(subject: Subject, effort: Effort) -> SearchStrategy[CanaryCase]:  # noqa: ARG001
    """Several rows in scattered blocks, in one layer or two."""
    import hypothesis.strategies as st

    return st.builds(CanaryCase, scenes(subject, CODE_DIMS, max_layers=2).filter(_asks_something))


def _asks_something(scene: Scene) -> bool:
    return any(row.new for row in scene.rows)


def write_cases(subject: Subject, effort: Effort) -> SearchStrategy[WriteCase]:  # noqa: ARG001
    """Writes into full pools, with padding where `write` is declared."""
    import hypothesis.strategies as st

    small = scenes(subject, CODE_DIMS, max_rows=2, max_layers=2).filter(_asks_something).map(_crowded)
    padded = st.builds(WriteCase, small, st.just("write"), st.integers(0, 3), st.integers(0, 3))
    plain = st.builds(WriteCase, small)
    return plain if needs_operation("write", subject) else st.one_of(plain, padded)


def _crowded(scene: Scene) -> Scene:
    return replace(scene, spare=min(scene.spare, 1))


def copy_cases(subject: Subject, effort: Effort) -> SearchStrategy[CopyCase]:  # noqa: ARG001
    """Single copies and chains."""
    import hypothesis.strategies as st

    place = st.integers(0, 5)

    @st.composite
    def draw_case(draw: DrawFn) -> CopyCase:
        shape = draw(shapes(subject, CODE_DIMS))
        scene = Scene(
            shape,
            (Row(2 * shape.block_size, 1),),
            spare=2,
            layers=draw(st.integers(1, 2)),
            seed=draw(st.integers(0, 99)),
        )
        a, b, c = draw(st.lists(place, min_size=3, max_size=3, unique=True))
        shape_of_pairs = draw(st.sampled_from([((a, b),), ((a, b), (b, c)), ((b, c), (a, b)), ((a, b), (a, c))]))
        return CopyCase(scene, shape_of_pairs)

    return draw_case()


CANARY = Check(
    name="correctness.canary",
    about="attention reads exactly the rows that the block table names",
    half="kernel",
    case_type=CanaryCase,
    judge=told(judge_canary),
    requires=nothing_required,
    cases=canary_cases,
)

WRITE_SET = Check(
    name="correctness.write_set",
    about="a write changes the declared slots and nothing else in the pool; padding is written nowhere",
    half="kernel",
    case_type=WriteCase,
    judge=told(judge_write_set),
    requires=nothing_required,
    cases=write_cases,
)

COPIES = Check(
    name="correctness.copies",
    about="block copies move K and V of all layers, in order, and change nothing else",
    half="kernel",
    case_type=CopyCase,
    judge=told(judge_copies),
    requires=lambda subject: needs_operation("copy_blocks", subject),
    cases=copy_cases,
)
