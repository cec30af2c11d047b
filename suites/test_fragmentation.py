"""Memory: what a manager wastes on a request trace keeps the identities that it must."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from kvbench.budget import Budget
from kvbench.measurement import Request
from kvbench.suites.traces import BASELINES, measure_fragmentation_of
from kvbench.verification import Entry

SHARES = ("effective_utilisation", "internal_fragmentation", "reserved", "external_fragmentation")


def test_fragmentation(kv_entry: Entry, kv_budget: Budget, kv_seed: int) -> None:
    """The shares of used and wasted slots are ratios that add up to 1, and larger blocks waste more."""
    if kv_entry.subject.adapter.capabilities.manager is None:
        pytest.skip(f"{kv_entry.subject.adapter.name} has no manager of its own")
    shares: dict[int, dict[str, float]] = defaultdict(dict)
    for record in measure_fragmentation_of([kv_entry], Request(kv_budget, kv_seed), lambda *_: None):
        if record.adapter != BASELINES and record.metric in SHARES and record.value is not None:
            shares[record.params["block_size"]][str(record.metric)] = record.value
    assert shares
    for found in shares.values():
        assert all(0 <= share <= 1 for share in found.values())
        assert sum(found.values()) == pytest.approx(1)
    internal = [found["internal_fragmentation"] for _, found in sorted(shares.items())]
    assert all(small <= large + 1e-3 for small, large in pairwise(internal))
