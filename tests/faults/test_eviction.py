"""Faults of eviction and locking are alive, and the checks find them with little effort."""

from __future__ import annotations

import pytest

from kvbench.budget import BUDGETS, effort
from kvbench.faults.eviction import ENTRIES
from kvbench.faults.fault import Fault, alive
from kvbench.search import search
from kvbench.subject import Subject
from kvbench.suites.catalogue import CHECKS
from kvbench.verification import check_named

FOUND_BY = {
    "E1a": "lifecycle.manager",
    "E1b": "lifecycle.manager",
    "E1c": "lifecycle.manager",
    "E1d": "lifecycle.manager",
    "E2a": "lifecycle.manager",
    "E2b": "lifecycle.drain",
    "E2c": "lifecycle.manager",
    "E2d": "lifecycle.manager",
    "E3a": "prefix-sharing.eviction",
    "E3b": "prefix-sharing.eviction",
    "E3c": "prefix-sharing.eviction",
    "E3d": "prefix-sharing.eviction",
    "E3e": "prefix-sharing.eviction",
    "E3f": "prefix-sharing.eviction",
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
