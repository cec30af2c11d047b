"""How much a run may spend: `quick`, `standard`, `deep`, or a wall-clock time such as `30s`."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace

from kvbench.errors import UsageError


@dataclass(frozen=True)
class Budget:
    """What each part of a run may spend.

    examples: generated cases a check and configuration.
    steps: operations in a generated script.
    check_seconds: after so long a check generates no further case (what it has found is still shrunk).
    requests: of a trace that a measurement replays (None: all).
    rounds, race_seconds: timing rounds of a comparison, and the time after which no further round is begun.
    total_seconds: wall-clock of one adapter's checks, for budgets given as a time; examples are then unlimited.
    """

    name: str
    examples: int
    steps: int
    check_seconds: float
    requests: int | None
    rounds: int
    race_seconds: float
    total_seconds: float | None = None


BUDGETS = {
    "quick": Budget("quick", examples=16, steps=20, check_seconds=10.0, requests=1000, rounds=15, race_seconds=5.0),
    "standard": Budget(
        "standard", examples=200, steps=40, check_seconds=60.0, requests=5000, rounds=30, race_seconds=30.0
    ),
    "deep": Budget("deep", examples=2000, steps=60, check_seconds=900.0, requests=None, rounds=60, race_seconds=120.0),
}


def parse_budget(text: str) -> Budget:
    """The budget named by `text`: a name of `BUDGETS` or a time, "30s", "5m" or "1h"."""
    if text in BUDGETS:
        return BUDGETS[text]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if not 0 < seconds <= 24 * 3600:
        raise UsageError(f"unknown budget {text!r}; use quick, standard, deep or a time up to 24h such as 30s or 5m")
    shape = BUDGETS["quick" if seconds < 120 else "standard"]
    return replace(shape, name=text, total_seconds=seconds)


@dataclass(frozen=True)
class Effort:
    """One check's share of a budget, with the seed that its cases are derived from.

    A run with `seconds` None of unlimited examples would not end, so either bound always applies.
    """

    examples: int
    steps: int
    seconds: float
    seed: int
    until_time: bool = False

    def deadline(self) -> float:
        """The `time.monotonic()` value after which no further case is generated."""
        return time.monotonic() + self.seconds


def effort(budget: Budget, seed: int, checks: int) -> Effort:
    """The share of one of `checks` checks."""
    if budget.total_seconds is None:
        return Effort(budget.examples, budget.steps, budget.check_seconds, seed)
    return Effort(budget.examples, budget.steps, budget.total_seconds / max(checks, 1), seed, until_time=True)
