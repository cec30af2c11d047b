"""Isolation: equal tokens in different namespaces are different prefixes, on every path by which they come to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvbench.budget import Effort
from kvbench.checks import Outcome
from kvbench.subject import Subject
from kvbench.suites.lifecycle.grid import try_all
from kvbench.suites.lifecycle.operations import EndStep, Extend, Fork, Preempt, Resume, SwapIn, SwapOut
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.lifecycle.run import World
from kvbench.suites.prefix.hits import do, fail, least_hit, must_hit, open_world, release, roomy_pool, submit

Path = Literal["begin", "decode", "fork", "resume", "swap"]

NAMESPACES = (None, "", "None", "0", "a", "ab", "b", "A", "a ", "abc", "a\0", "\0", "1", "-1")
"""Pairs of these are easily taken for each other: absent and empty, one a prefix of another, texts of numbers."""


@dataclass(frozen=True)
class Isolation:
    """A prompt is computed in one namespace and asked for in another, and then in its own.

    path: where the prompt's second half comes from: its begin, decoding, decoding after a fork, decoding after it was
    preempted and resumed, or moved to the host and back. asked: the tokens asked for in the other namespace.
    """

    block_size: int
    own: str | None
    other: str | None
    tokens: tuple[int, ...]
    asked: tuple[int, ...]
    path: Path = "begin"


def cases(subject: Subject) -> Iterator[Isolation]:
    """All pairs of namespaces; and pairs that are equal when namespace and tokens are written one after the other."""
    operations = subject.manager.operations
    paths: list[Path] = ["begin", "decode"]
    paths += ["fork"] if "fork" in operations else []
    paths += ["resume"] if "preempt" in operations else []
    paths += ["swap"] if "swap" in operations else []
    sizes = block_sizes(subject, joined=False)[:3]
    for path in paths:
        for size in sizes:
            tokens = tuple(1 + place % 3 for place in range(2 * size + 1))
            yield Isolation(size, "a", "b", tokens, tokens, path)
            yield Isolation(size, None, "a", tokens, tokens, path)
            yield Isolation(size, "a", None, tokens, tokens, path)
    for size in sizes[:2]:
        tokens = (1,) * (2 * size + 1)
        for own in NAMESPACES:
            for other in NAMESPACES:
                if own != other:
                    yield Isolation(size, own, other, tokens, tokens)
        yield from _run_together(size)


def _run_together(size: int) -> Iterator[Isolation]:
    """(a, 12 ...) against (a1, 2 ...), and the like with separators and with the codes of letters as tokens."""
    rest = (5,) * (2 * size)
    for own, first, other, second in (
        ("a", (12,), "a1", (2,)),
        ("1", (23,), "12", (3,)),
        (None, (97,), "a", (97,)),
        ("", (97,), "a", (97,)),
        ("a", (98,), "ab", (98,)),
        ("a,1", (2,), "a", (1,)),
        ("a|1", (2,), "a", (1,)),
        ("1,2", (3,), "1", (2,)),
    ):
        yield Isolation(size, own, other, first + rest, second + rest)
        yield Isolation(size, other, own, second + rest, first + rest)


def judge_isolation(subject: Subject, case: Isolation) -> None:
    """Nothing is hit in the other namespace; in its own the prompt is."""
    size = case.block_size
    pool = roomy_pool(size, 6, len(case.tokens) + 2 * size)
    world = open_world(subject, replace(pool, host_blocks=pool.num_blocks if case.path == "swap" else 0))
    last = _compute(world, case)
    hit = submit(world, "stranger", case.asked, case.other)
    if hit:
        fail(world, f"{hit} tokens computed in namespace {case.own!r} were hit from namespace {case.other!r}")
    release(world, last)
    must_hit(world, "again", submit(world, "again", case.tokens, case.own), least_hit(len(case.tokens), size))
    world.finish()


def _compute(world: World, case: Isolation) -> str:
    """Compute the prompt on the case's path; the sequence that holds it in the end."""
    if case.path == "begin":
        submit(world, "a", case.tokens, case.own)
        return "a"
    half = len(case.tokens) // 2
    submit(world, "a", case.tokens[:half], case.own)
    last = "a"
    if case.path == "fork":
        do(world, Fork("a", "child"))
        last = "child"
    elif case.path == "resume":
        do(world, Preempt("a"))
        do(world, Resume("a"))
        world.perform(EndStep())
    elif case.path == "swap":
        do(world, SwapOut("a"))
        world.perform(EndStep())
        do(world, SwapIn("a"))
        world.perform(EndStep())
    do(world, Extend(last, case.tokens[half:]))
    world.perform(EndStep())
    return last


def search_namespaces(subject: Subject, effort: Effort) -> Outcome:
    """All cases, the ordinary pairs first."""
    return try_all(subject, effort, cases(subject), judge_isolation)


__all__ = ["NAMESPACES", "Isolation", "cases", "judge_isolation", "search_namespaces"]
