"""Faults of copy-on-write and rollback are alive, and the checks find them with little effort."""

from __future__ import annotations

import pytest

from kvbench.budget import BUDGETS, effort
from kvbench.faults.fault import Fault, alive
from kvbench.faults.forks import ENTRIES
from kvbench.search import search
from kvbench.subject import Subject
from kvbench.suites.catalogue import CHECKS
from kvbench.verification import check_named

FOUND_BY = {
    "C1a": "lifecycle.manager",
    "C1b": "lifecycle.manager",
    "C1c": "lifecycle.manager",
    "C1d": "lifecycle.manager",
    "C1e": "lifecycle.manager",
    "C2d": "lifecycle.manager",
    "C2f": "lifecycle.misuse",
    "R1a": "lifecycle.manager",
    "R1c": "lifecycle.manager",
    "R1d": "lifecycle.manager",
}
"""The check that is expected to find each fault; others may, too."""

FAULTS = {entry.id: entry for entry in ENTRIES if isinstance(entry, Fault)}


def test_every_fault_has_an_expected_check() -> None:
    """No fault of the shelf is left untried."""
    assert FOUND_BY.keys() == FAULTS.keys()


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_alive(name: str) -> None:
    """Its trigger tells it from its clean adapter."""
    assert alive(FAULTS[name])


@pytest.mark.parametrize(("name", "check"), FOUND_BY.items())
def test_the_fault_is_found(name: str, check: str) -> None:
    """The expected check fails at the quick budget."""
    fault = FAULTS[name]
    subject = Subject(fault.adapter, dict(fault.config))
    assert search(check_named(CHECKS, check), subject, effort(BUDGETS["quick"], seed=0, checks=1)).failure is not None
