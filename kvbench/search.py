"""Finding and shrinking a case that breaks a property, with hypothesis."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvbench.budget import Effort
from kvbench.checks import Check, Failure, NotApplicable, Outcome, Violation
from kvbench.subject import EngineError, Subject

if TYPE_CHECKING:
    from hypothesis import settings as Settings


def search(check: Check, subject: Subject, effort: Effort) -> Outcome:
    """Look for a case of `check` that `subject` gets wrong, and shrink it."""
    if check.search is not None:
        return check.search(subject, effort)
    assert check.cases is not None
    strategy = check.cases(subject, effort)
    return repeat(lambda seed, left: _one_search(check, subject, strategy, effort, seed, left), effort)


def judge(check: Check, subject: Subject, case: Any) -> Violation | None:
    """Run one case; the violation if the property does not hold. Raises `NotApplicable`."""
    try:
        check.judge(subject, case)
    except Violation as violation:
        return violation
    except EngineError as error:
        return Violation(str(error))
    return None


def repeat(one: Callable[[int, float], Outcome], effort: Effort) -> Outcome:
    """One search, or with `until_time` searches from further seeds until the time is up or a failure is found."""
    started = time.monotonic()
    outcome = one(effort.seed, effort.seconds)
    cases, reached = outcome.cases, dict(outcome.reached or {})
    seed = effort.seed
    while effort.until_time and outcome.failure is None:
        left = effort.seconds - (time.monotonic() - started)
        if left <= 0 or outcome.cases == 0:
            break
        seed += 1_000_003
        outcome = one(seed, left)
        cases += outcome.cases
        for regime, count in (outcome.reached or {}).items():
            reached[regime] = reached.get(regime, 0) + count
    return Outcome(cases, outcome.failure, reached)


def search_settings(effort: Effort) -> Settings:
    """Hypothesis settings of every search: derandomised by seed, no database, no timing, failures shrunk."""
    from hypothesis import HealthCheck, Phase, Verbosity, settings

    return settings(
        max_examples=effort.examples,
        stateful_step_count=effort.steps,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
    )


def _one_search(check: Check, subject: Subject, strategy: Any, effort: Effort, seed: int, seconds: float) -> Outcome:
    import hypothesis

    deadline = time.monotonic() + seconds
    tried = 0
    last: Failure | None = None

    @hypothesis.seed(seed)
    @search_settings(effort)
    @hypothesis.given(strategy)
    def property_holds(case: Any) -> None:
        nonlocal tried, last
        # Once a failure is known the remaining calls shrink it, however long the search has taken.
        if last is None and time.monotonic() > deadline:
            return
        tried += 1
        try:
            violation = judge(check, subject, case)
        except NotApplicable:
            hypothesis.reject()
        if violation is not None:
            last = Failure(case, violation)
            raise violation

    # Hypothesis ends a failing search by replaying its smallest case, so `last` holds it. An engine that answers
    # differently each time makes it raise Flaky instead: the case seen last is still evidence.
    with contextlib.suppress(Violation, hypothesis.errors.Flaky, hypothesis.errors.Unsatisfiable):
        property_holds()
    return Outcome(tried, last)
