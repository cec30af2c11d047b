"""The checks against the catalogue: which fault is killed by which check, how fast, and whether a control is accused.

Nothing here knows which check should find what: every entry is shown to all checks that its declared capabilities
allow, with little effort first and then with more, so that what is easily found is found fast.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbench.budget import Budget, Effort, effort
from kvbench.checks import Check, Failure, NotApplicable, skip_reason
from kvbench.faults.catalogue import classes, controls, faults
from kvbench.faults.fault import Control, Fault, alive
from kvbench.interface import Adapter
from kvbench.search import judge, search
from kvbench.subject import Subject
from kvbench.verification import Entry, Question, questions

FIRST_EXAMPLES = 4
FIRST_SECONDS = 0.5
"""Cases and time of each check in the first round; each round has four times as much as the one before."""


@dataclass(frozen=True)
class Kill:
    """How a check found something.

    seconds: from the first case that the entry was shown until the case was shrunk. cases: that this check tried.
    operations, sequences: of the shrunk case, where it is a script. message: the violation in a sentence.
    """

    check: str
    config: dict[str, str]
    seconds: float
    cases: int
    operations: int | None
    sequences: int | None
    message: str


@dataclass(frozen=True)
class Trial:
    """What came of showing one entry to the checks.

    alive: whether its trigger tells it from its clean adapter; None for a control. kills: the first that was found, or
    one a check where all were asked. error: why the trial could not be held.
    """

    id: str
    kind: str
    class_id: str
    component: str
    difficulty: int
    about: str
    seed: int
    alive: bool | None
    kills: tuple[Kill, ...]
    seconds: float
    error: str = ""

    @property
    def killed(self) -> bool:
        """Whether a check failed."""
        return bool(self.kills)

    @property
    def as_it_should_be(self) -> bool:
        """A fault is alive and killed, a control is not accused."""
        return not self.error and (not self.killed if self.kind == "control" else self.killed and bool(self.alive))


def entries(only: Sequence[str] = ()) -> list[Fault | Control]:
    """The catalogue, or what of it is named: ids, or ids of classes."""
    everything: list[Fault | Control] = [*faults(), *controls()]
    if not only:
        return everything
    return [entry for entry in everything if entry.id in only or getattr(entry, "class_id", None) in only]


def hold(entry: Fault | Control, checks: Sequence[Check], budget: Budget, seed: int, *, exhaustive: bool) -> Trial:
    """Show `entry` to the checks until one fails, or to all of them. Everything that goes wrong is in the result."""
    started = time.perf_counter()
    about = not_held(entry, seed)
    try:
        is_alive = alive(entry) if isinstance(entry, Fault) else None
        began = time.perf_counter()
        kills = tuple(_kills(entry, checks, budget, seed, began, exhaustive=exhaustive))
    except Exception as error:
        seconds = time.perf_counter() - started
        return replace(about, seconds=seconds, error=f"{type(error).__name__}: {str(error)[:300]}")
    return replace(about, alive=is_alive, kills=kills, seconds=time.perf_counter() - started)


def not_held(entry: Fault | Control, seed: int) -> Trial:
    """What is known of a trial before it is held."""
    if isinstance(entry, Control):
        return Trial(entry.id, "control", "", "", 0, entry.about, seed, None, (), 0.0)
    known = next(found for found in classes() if found.id == entry.class_id)
    return Trial(
        entry.id, "fault", known.id, known.component, known.difficulty, entry.about, seed, None, (), 0.0
    )  # fmt: skip


def _kills(
    entry: Fault | Control, checks: Sequence[Check], budget: Budget, seed: int, began: float, *, exhaustive: bool
) -> Iterator[Kill]:
    open_questions = list(_asked(entry, checks))
    tried: dict[int, int] = {}
    whole = effort(budget, seed, max(len(open_questions), 1))
    for share in _deepening(whole):
        for question in list(open_questions):
            asked = time.perf_counter()
            outcome = search(question.check, question.subject, share)
            if outcome.failure is None:
                if tried.get(id(question)) == outcome.cases and time.perf_counter() - asked < share.seconds:
                    open_questions.remove(question)  # all the cases that it has
                tried[id(question)] = outcome.cases
                continue
            if isinstance(entry, Fault):
                _acquit(question, entry.clean, outcome.failure)
            yield _kill(question, outcome.failure, outcome.cases, time.perf_counter() - began)
            if not exhaustive:
                return
            open_questions = [other for other in open_questions if other.check is not question.check]


def _asked(entry: Fault | Control, checks: Sequence[Check]) -> Iterator[Question]:
    config = dict(entry.config) if isinstance(entry, Fault) else {}
    for question in questions(Entry(entry.id, Subject(entry.adapter, config)), checks):
        if skip_reason(question.check, question.subject) is None:
            yield question


def _deepening(whole: Effort) -> Iterator[Effort]:
    """Ever more cases, each round from a seed of its own, up to the whole effort."""
    examples, number = FIRST_EXAMPLES, 0
    while examples < whole.examples:
        seconds = min(whole.seconds, FIRST_SECONDS * 4**number)
        yield replace(whole, examples=examples, seconds=seconds, seed=whole.seed + 7919 * (number + 1))
        examples, number = examples * 4, number + 1
    yield whole


def _acquit(question: Question, clean: Adapter, failure: Failure) -> None:
    """Raise where the clean adapter fails the same case: then it is the check that is wrong."""
    try:
        violation = judge(question.check, Subject(clean, dict(question.subject.config)), failure.case)
    except NotApplicable:
        return
    if violation is not None:
        raise AssertionError(f"{question.check.name} accuses the clean adapter, too: {violation.message}")


def _kill(question: Question, failure: Failure, cases: int, seconds: float) -> Kill:
    operations = getattr(failure.case, "operations", None)
    return Kill(
        check=question.check.name,
        config=dict(question.subject.config),
        seconds=seconds,
        cases=cases,
        operations=None if operations is None else len(operations),
        sequences=None if operations is None else _sequences(operations),
        message=failure.violation.message,
    )


def _sequences(operations: Sequence[Any]) -> int:
    """How many sequences a script begins or forks."""
    names = (getattr(operation, key, None) for operation in operations for key in ("seq", "child"))
    return len({name for name in names if isinstance(name, str)})


__all__ = ["Kill", "Trial", "entries", "hold", "not_held"]
