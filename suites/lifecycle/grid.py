"""Trying a list of cases, smallest first, instead of random ones: where the cases that matter can be listed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from kvbench.budget import Effort
from kvbench.checks import Failure, NotApplicable, Outcome, Violation
from kvbench.subject import EngineError, Subject
from kvbench.suites.lifecycle.operations import Script
from kvbench.suites.lifecycle.shrink import shrink

Judge = Callable[[Subject, Any], None]


def try_all(subject: Subject, effort: Effort, cases: Iterable[Any], judge: Judge) -> Outcome:
    """Judge the cases in order until one fails or the time is up. A failing `Script` is shrunk."""
    deadline = time.monotonic() + effort.seconds
    tried = 0
    for case in cases:
        if time.monotonic() > deadline:
            break
        try:
            violation = violation_of(judge, subject, case)
        except NotApplicable:
            continue
        tried += 1
        if violation is not None:
            failure = Failure(case, violation)
            if isinstance(case, Script):
                failure = shrink(failure, lambda script: _violation_or_none(judge, subject, script), effort.seconds)
            return Outcome(tried, failure)
    return Outcome(tried)


def violation_of(judge: Judge, subject: Subject, case: Any) -> Violation | None:
    """The violation of a case, None if it passes. Raises `NotApplicable`."""
    try:
        judge(subject, case)
    except Violation as violation:
        return violation
    except EngineError as error:
        return Violation(str(error))
    return None


def _violation_or_none(judge: Judge, subject: Subject, case: Any) -> Violation | None:
    try:
        return violation_of(judge, subject, case)
    except NotApplicable:
        return None


__all__ = ["Judge", "try_all", "violation_of"]
