"""Attention kernels: numbers, relations and content."""

from __future__ import annotations

import pytest

from kvbench.plugin import Asked

pytestmark = pytest.mark.kvbench(suite="correctness")


def test_correctness(kv_check: Asked) -> None:
    """A property of attention kernels holds for every case that was generated."""
    kv_check()
