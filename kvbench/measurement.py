"""What a measuring suite is: a named function from adapters and a request to records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvbench.budget import Budget
from kvbench.results import Record
from kvbench.verification import Entry


class Announce(Protocol):
    """Told what is being done now: words, how many parts are done, how many there are."""

    def __call__(self, text: str, done: int, total: int) -> None:
        """Show it."""


@dataclass(frozen=True)
class Request:
    """What a measurement is asked: the trace (name or file), the model whose shapes are used, budget and seed.

    None stands for the suite's own choice. whole_trace: use all of the trace, however small the budget.
    """

    budget: Budget
    seed: int
    trace: str | None = None
    model: str | None = None
    whole_trace: bool = False

    @property
    def requests(self) -> int | None:
        """How many requests of the trace are used; None: all."""
        return None if self.whole_trace else self.budget.requests


@dataclass(frozen=True)
class Measurement:
    """A measuring suite. `measure` yields records as they are made."""

    name: str
    about: str
    measure: Callable[[Sequence[Entry], Request, Announce], Iterator[Record]]
