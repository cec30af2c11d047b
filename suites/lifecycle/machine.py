"""Generating scripts: a rule-based state machine over what a manager declares, and the search that runs it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvbench.budget import Effort
from kvbench.checks import NotApplicable, Outcome, Violation
from kvbench.errors import CacheError
from kvbench.search import repeat, search_settings
from kvbench.subject import EngineError, Subject
from kvbench.suites.lifecycle.operations import Begin, CacheShape, EndStep, Script
from kvbench.suites.lifecycle.rules import Choices, Hunt, Rules, block_sizes, draw_pool, rules_for
from kvbench.suites.lifecycle.run import judge_script, new_world
from kvbench.suites.lifecycle.shrink import shrink

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine


def make_machine(hunt: Hunt) -> type[RuleBasedStateMachine]:
    """A state machine class whose rules are those of `Rules` that the subject declares."""
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

    numbers = st.integers(0, 2**24 - 1)

    def rule_named(name: str) -> Any:
        @rule(number=numbers)
        def run_rule(self: Any, number: int) -> None:
            if self.actions.world is not None:
                getattr(self.actions, name)(self.actions.choices(number))

        run_rule.__name__ = name
        return run_rule

    class Machine(RuleBasedStateMachine):
        """Rules come from `rules_for`."""

        def __init__(self) -> None:
            super().__init__()
            self.actions = Rules(hunt)

        @initialize(number=numbers)
        def start(self, number: int) -> None:
            self.actions.start(number)

        def teardown(self) -> None:
            self.actions.stop()

    names = rules_for(hunt.subject.manager, hunt.kernel is not None, hunt.misuse)
    # Hypothesis goes by the alphabet and begins with a run of nothing but the first rule.
    return type(
        "Machine", (Machine,), {f"rule_{place:02}_{name}": rule_named(name) for place, name in enumerate(names)}
    )


def hunt_for(
    subject: Subject, effort: Effort, kernel: CacheShape | None = None, misuse: bool = False, runs: int = 1
) -> Outcome:
    """Generate scripts and judge them while they run; a failing one is shrunk.

    runs: how many runs an example is worth.
    """
    with contextlib.nullcontext() if kernel is None else _one_thread():
        _warm_up(subject, kernel)
        return repeat(lambda seed, seconds: _hunt(subject, effort, seed, seconds, kernel, misuse, runs), effort)


def _warm_up(subject: Subject, kernel: CacheShape | None) -> None:
    """One step, so that imports and first calls of an engine are not taken off the search's time."""
    pool = draw_pool(subject.manager, block_sizes(subject, kernel is not None), kernel is not None, Choices(0))
    # What goes wrong here goes wrong in the search as well, and is told there.
    with contextlib.suppress(NotApplicable, Violation, EngineError, CacheError):
        world = new_world(subject, pool, kernel)
        world.perform(Begin("a", (1,)))
        world.perform(EndStep())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Tiny steps cost ten times as much when torch's threads have to be woken for each of their operations."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _hunt(
    subject: Subject, effort: Effort, seed: int, seconds: float, kernel: CacheShape | None, misuse: bool, runs: int
) -> Outcome:
    import hypothesis
    from hypothesis.stateful import run_state_machine_as_test

    hunt = Hunt(subject, kernel, misuse, time.monotonic() + seconds)
    settings = hypothesis.settings(
        search_settings(effort), max_examples=effort.examples * runs, phases=[hypothesis.Phase.generate]
    )
    # The first failing run is kept with its script; hypothesis then repeats it once to report it.
    with contextlib.suppress(Violation, hypothesis.errors.Flaky, hypothesis.errors.Unsatisfiable):
        run_state_machine_as_test(hypothesis.seed(seed)(make_machine(hunt)), settings=settings)
    failure = hunt.failure
    if failure is not None:
        failure = shrink(failure, lambda script: _violation(subject, script), max(10.0, 2 * effort.seconds))
    counted = {**hunt.reached, "operations": hunt.operations}
    return Outcome(hunt.cases, failure, dict(sorted(counted.items())))


def _violation(subject: Subject, script: Script) -> Violation | None:
    try:
        judge_script(subject, script)
    except Violation as violation:
        return violation
    except NotApplicable:
        return None
    return None


__all__ = ["hunt_for", "make_machine"]
