"""Completeness: what was computed and never evicted is hit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvbench.budget import Effort
from kvbench.checks import NotApplicable, Outcome
from kvbench.subject import Subject
from kvbench.suites.lifecycle.grid import try_all
from kvbench.suites.lifecycle.operations import Begin, Draft, EndStep, Extend, Fork, Preempt, Resume
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.prefix.hits import do, least_hit, must_hit, open_world, release, roomy_pool, submit

Path = Literal["freed", "running", "chunks", "decoded", "turn", "drafts", "fork", "resume", "evicted"]

NEEDS = {"drafts": "truncate", "fork": "fork", "resume": "preempt"}


@dataclass(frozen=True)
class Complete:
    """A prompt of `length` tokens is computed and asked for again.

    path: how it was computed and what had become of it: freed, still running, computed in chunks, grown token by token,
    gone on with as a conversation's next turn, grown by accepted drafts, forked, preempted and resumed, evicted in part
    and computed again.
    """

    block_size: int
    length: int
    path: Path


def cases(subject: Subject) -> Iterator[Complete]:
    """Lengths around multiples of the block size, on every declared path."""
    paths: list[Path] = ["freed", "running", "chunks", "decoded", "turn", "drafts", "fork", "resume", "evicted"]
    declared = [path for path in paths if path not in NEEDS or NEEDS[path] in subject.manager.operations]
    if subject.manager.eviction is None:
        declared.remove("evicted")  # what goes next is not known
    for size in block_sizes(subject, joined=False):
        lengths = sorted({n for k in (0, 1, 2, 3) for n in (k * size - 1, k * size, k * size + 1) if n > 0})
        for length in lengths:
            for path in declared:
                yield Complete(size, length, path)


def judge_complete(subject: Subject, case: Complete) -> None:
    """The second time, every full block is hit, but for the last one of a prompt that ends with it."""
    size, tokens = case.block_size, tuple(1 + place % 5 for place in range(case.length))
    if case.path == "evicted":
        _judge_evicted(subject, case, tokens)
        return
    world = open_world(subject, roomy_pool(size, 4, 3 * case.length + 3 * size))
    more: tuple[int, ...] = ()
    if case.path == "resume":
        submit(world, "a", tokens)
        do(world, Preempt("a"))
        must_hit(world, "a", do(world, Resume("a")), least_hit(case.length, size))
        world.finish()
        return
    submit(world, "a", tokens, chunk=max(1, size - 1) if case.path == "chunks" else 0)
    if case.path in ("decoded", "turn"):
        more = (7,) * (size + 1)
        for token in more:
            do(world, Extend("a", (token,)))
            world.perform(EndStep())
    elif case.path == "drafts":
        more = (7,) * (size + 1)
        do(world, Draft("a", (*more, 8, 8), len(more)))
        world.perform(EndStep())
    elif case.path == "fork":
        do(world, Fork("a", "b"))
        more = (7,) * (size + 1)
        do(world, Extend("b", more))
        world.perform(EndStep())
        release(world, "b")
    if case.path != "running":
        release(world, "a")
    asked = tokens + more + ((9,) * size if case.path == "turn" else ())
    committed = len(tokens + more)
    least = min(committed // size * size, least_hit(len(asked), size))
    must_hit(world, "c", submit(world, "c", asked), least)
    world.finish()


def _judge_evicted(subject: Subject, case: Complete, tokens: tuple[int, ...]) -> None:
    """The last cached block goes, the prompt is computed again, and gone on with it is hit as a whole."""
    size = case.block_size
    blocks = case.length // size
    if not blocks:
        raise NotApplicable("nothing of it is cached")
    world = open_world(subject, roomy_pool(size, 4, 3 * case.length + 3 * size))
    submit(world, "a", tokens)
    release(world, "a")
    # One sequence holds what the other prompts will take; a second one evicts a block.
    room = 2 * (blocks + 2)
    do(world, Begin("room", (8,) * (room * size)))
    submit(world, "filler", (9,) * ((world.view.free - blocks + 1) * size))
    release(world, "room")
    submit(world, "b", tokens)
    release(world, "b")
    must_hit(world, "c", submit(world, "c", (*tokens, 7)), min(blocks * size, least_hit(case.length + 1, size)))
    world.finish()


def search_complete(subject: Subject, effort: Effort) -> Outcome:
    """All cases, small ones first."""
    return try_all(subject, effort, cases(subject), judge_complete)


__all__ = ["Complete", "cases", "judge_complete", "search_complete"]
