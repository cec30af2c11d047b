"""Faults of the allocator are alive, and the checks find them with little effort."""

from __future__ import annotations

import pytest

from kvbench.budget import BUDGETS, effort
from kvbench.faults.allocator import ENTRIES
from kvbench.faults.fault import Fault, alive
from kvbench.search import search
from kvbench.subject import Subject
from kvbench.suites.catalogue import CHECKS
from kvbench.verification import check_named

FOUND_BY = {
    "A1a": "lifecycle.manager",
    "A1b": "lifecycle.misuse",
    "A1c": "lifecycle.manager",
    "A2a": "lifecycle.manager",
    "A2b": "lifecycle.manager",
    "A2c": "lifecycle.manager",
    "A3a": "lifecycle.manager",
    "A3b": "lifecycle.exact_fit",
    "A3c": "lifecycle.manager",
    "A3d": "lifecycle.manager",
    "A3e": "lifecycle.manager",
    "A3f": "lifecycle.manager",
    "A5a": "lifecycle.manager",
    "A5b": "lifecycle.manager",
    "A5c": "lifecycle.manager",
    "A5d": "lifecycle.exact_fit",
    "A5e": "lifecycle.misuse",
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
