"""Reset: what was computed before it is never hit again, whether its owner is gone, running, preempted or swapped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvbench.budget import Effort
from kvbench.checks import Outcome
from kvbench.subject import Subject
from kvbench.suites.lifecycle.grid import try_all
from kvbench.suites.lifecycle.operations import EndStep, Extend, Preempt, Reset, Resume
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.prefix.hits import do, fail, least_hit, must_hit, open_world, release, roomy_pool, submit

Owner = Literal["freed", "running", "running, then freed", "grown", "resumed"]


@dataclass(frozen=True)
class Withdrawn:
    """A prompt is computed, the cache is reset, and the prompt is asked for again.

    owner: what becomes of the sequence that computed it: freed before the reset; running all the time; freed after it;
    grown and committed after it; preempted before and resumed after it.
    """

    block_size: int
    length: int
    owner: Owner


def cases(subject: Subject) -> Iterator[Withdrawn]:
    """Two lengths, each owner."""
    owners: list[Owner] = ["freed", "running", "running, then freed", "grown"]
    owners += ["resumed"] if "preempt" in subject.manager.operations else []
    for size in block_sizes(subject, joined=False):
        for length in (2 * size, 2 * size + 1):
            for owner in owners:
                yield Withdrawn(size, length, owner)


def judge_withdrawn(subject: Subject, case: Withdrawn) -> None:
    """Asked for after the reset, the prompt is not hit; asked for once more, it is."""
    tokens = (1,) * case.length
    world = open_world(subject, roomy_pool(case.block_size, 5, case.length + 2 * case.block_size))
    submit(world, "a", tokens)
    if case.owner == "freed":
        release(world, "a")
    elif case.owner == "resumed":
        do(world, Preempt("a"))
    do(world, Reset())
    if case.owner == "running, then freed":
        release(world, "a")
    elif case.owner == "grown":
        do(world, Extend("a", (2,) * case.block_size))
        world.perform(EndStep())
    elif case.owner == "resumed" and (hit := do(world, Resume("a"))):
        fail(world, f"a hit {hit} tokens that were computed before the reset when it was resumed")
    asked = tokens + ((2,) * case.block_size + (3,) if case.owner == "grown" else ())
    if case.owner != "resumed" and (hit := submit(world, "b", asked)):
        fail(world, f"b hit {hit} tokens that were computed before the reset")
    world.perform(EndStep())
    must_hit(world, "c", submit(world, "c", asked), least_hit(len(asked), case.block_size))
    world.finish()


def search_reset(subject: Subject, effort: Effort) -> Outcome:
    """All cases."""
    return try_all(subject, effort, cases(subject), judge_withdrawn)


__all__ = ["Withdrawn", "cases", "judge_withdrawn", "search_reset"]
