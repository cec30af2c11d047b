"""Giving everything back: a sequence is let go of in each of its states, again and again, in a pool that is tight."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvbench.budget import Effort
from kvbench.checks import Outcome
from kvbench.interface import PoolSpec
from kvbench.subject import Subject
from kvbench.suites.lifecycle.grid import try_all
from kvbench.suites.lifecycle.operations import (
    Begin,
    Draft,
    EndStep,
    Extend,
    Fork,
    Free,
    Operation,
    Preempt,
    Resume,
    Script,
    SwapIn,
    SwapOut,
)
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.lifecycle.run import judge_script

ROUNDS = 3
BLOCKS = 6

Ending = Callable[[str, int], tuple[Operation, ...]]


def _prompt(size: int) -> tuple[int, ...]:
    return (1,) * (2 * size + 1)


ENDINGS: dict[str, Ending] = {
    "waiting": lambda a, size: (Begin(a, _prompt(size)), Free(a)),
    "half prefilled": lambda a, size: (Begin(a, _prompt(size)), EndStep(size), Free(a)),
    "decoding": lambda a, size: (Begin(a, _prompt(size)), EndStep(), Extend(a, (2,)), EndStep(), Free(a)),
    "refused": lambda a, size: (
        Begin(a, _prompt(size)),
        EndStep(),
        Begin(a + "'", _prompt(size) + (3,) * (4 * size)),
        EndStep(),
        Free(a),
    ),
    "grown until refused": lambda a, size: (
        Begin(a, _prompt(size)),
        EndStep(),
        Extend(a, (2,) * (size * BLOCKS)),
        EndStep(),
        Extend(a, (2,)),
        EndStep(),
        Free(a),
    ),
    "after drafts": lambda a, size: (
        Begin(a, _prompt(size)),
        EndStep(),
        Draft(a, (2,) * (size + 1), 1),
        EndStep(),
        Free(a),
    ),
    "with drafts unwritten": lambda a, size: (
        Begin(a, _prompt(size)),
        EndStep(),
        Draft(a, (2,) * (size + 1), 1),
        Free(a),
    ),
    "parent first": lambda a, size: (
        Begin(a, _prompt(size)),
        EndStep(),
        Fork(a, a + "'"),
        Extend(a + "'", (2,)),
        EndStep(),
        Free(a),
        EndStep(),
        Free(a + "'"),
    ),
    "preempted": lambda a, size: (Begin(a, _prompt(size)), EndStep(), Preempt(a), Free(a)),
    "resumed": lambda a, size: (Begin(a, _prompt(size)), EndStep(), Preempt(a), Resume(a), EndStep(), Free(a)),
    "swapped out": lambda a, size: (Begin(a, _prompt(size)), EndStep(), SwapOut(a), EndStep(), Free(a)),
    "swapped back": lambda a, size: (
        Begin(a, _prompt(size)),
        EndStep(),
        SwapOut(a),
        EndStep(),
        SwapIn(a),
        EndStep(),
        Free(a),
    ),
}
"""How a sequence may end, by its state."""


def _pool(subject: Subject, size: int, caching: bool) -> PoolSpec:
    """Room for two sequences; a manager that reserves whole sequences is promised that they stay short."""
    if subject.manager.paged:
        return PoolSpec(
            BLOCKS, size, prefix_caching=caching, host_blocks=BLOCKS, max_sequences=4, max_length=4 * BLOCKS * size
        )
    return PoolSpec(2 * BLOCKS, size, prefix_caching=caching, max_sequences=4, max_length=BLOCKS * size)


def cases(subject: Subject) -> Iterator[Script]:
    """Each ending, `ROUNDS` times in the same pool, with and without prefix caching."""
    for size in block_sizes(subject, joined=False)[:3]:
        for caching in (True, False) if subject.manager.prefix_caching else (False,):
            pool = _pool(subject, size, caching)
            for ending in ENDINGS.values():
                rounds = [ending(f"a{number}", size) for number in range(ROUNDS)]
                yield Script(pool, tuple(operation for one in rounds for operation in one))


def search_drain(subject: Subject, effort: Effort) -> Outcome:
    """All endings."""
    return try_all(subject, effort, cases(subject), judge_script)


__all__ = ["ENDINGS", "cases", "search_drain"]
