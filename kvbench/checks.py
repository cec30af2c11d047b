"""What a check is: one named property, the cases it is tried on, and the judge that says whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvbench.budget import Effort
from kvbench.subject import Subject
from kvbench.timeline import Timeline

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Half = Literal["manager", "kernel", "joined"]


class Violation(Exception):
    """A property does not hold.

    message: one sentence: what was expected, what was found, where.
    story: what happened step by step, in words that can be pasted into an issue tracker.
    timeline: the blocks, step by step, where the check keeps them.
    """

    def __init__(self, message: str, *, story: Sequence[str] = (), timeline: Timeline | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.story = tuple(story)
        self.timeline = timeline


class NotApplicable(Exception):
    """A case that this subject cannot be asked (a shape, option or operation that it does not declare)."""


@dataclass(frozen=True)
class Failure:
    """The smallest case found that breaks a property."""

    case: Any
    violation: Violation


@dataclass(frozen=True)
class Outcome:
    """What a search ended with: how many cases were tried, and the failure if there is one.

    reached: how often each named regime was reached ("pool exactly full": 7).
    """

    cases: int
    failure: Failure | None = None
    reached: dict[str, int] | None = None


@dataclass(frozen=True)
class Check:
    """One property of paged KV caches.

    name: "suite.property".
    about: the property in one sentence.
    half: what is judged: the manager alone, the kernel alone, or both joined. Manager checks run once an adapter,
        the others once a precision.
    case_type: frozen dataclass that `kvbench.codec` can save and read again; holds everything that the judge needs
        besides the subject.
    requires: why the check cannot be asked of this subject, or None.
    cases: hypothesis strategy of cases that the subject's declared capabilities allow.
    judge: runs a case against a subject; raises `Violation` if the property does not hold, `NotApplicable` if the
        subject does not declare what the case needs.
    search: replaces generation from `cases` where another kind of search is wanted (a state machine).
    """

    name: str
    about: str
    half: Half
    case_type: type
    judge: Callable[[Subject, Any], None]
    requires: Callable[[Subject], str | None]
    cases: Callable[[Subject, Effort], SearchStrategy[Any]] | None = None
    search: Callable[[Subject, Effort], Outcome] | None = None

    @property
    def suite(self) -> str:
        """The suite that the check belongs to."""
        return self.name.partition(".")[0]


def missing_half(check: Check, subject: Subject) -> str | None:
    """Why `check` would judge the reference instead of the adapter, or None."""
    if check.half == "manager" and not subject.own_manager:
        return f"{subject.adapter.name} has no manager of its own"
    if check.half == "kernel" and not subject.own_kernel:
        return f"{subject.adapter.name} has no kernel of its own"
    if check.half == "joined" and not subject.own_kernel:
        return f"{subject.adapter.name} has no kernel of its own; its manager is judged alone"
    return None


def skip_reason(check: Check, subject: Subject) -> str | None:
    """Why `check` is not run on `subject`, or None."""
    return missing_half(check, subject) or check.requires(subject)
