"""Cache managers: content and bookkeeping over the life of sequences."""

from __future__ import annotations

import pytest

from kvbench.plugin import Asked

pytestmark = pytest.mark.kvbench(suite="lifecycle")


def test_lifecycle(kv_check: Asked) -> None:
    """A property of cache managers holds for every case that was generated."""
    kv_check()
