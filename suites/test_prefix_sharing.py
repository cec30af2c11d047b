"""Prefix sharing: hits are complete, exact and isolated."""

from __future__ import annotations

import pytest

from kvbench.plugin import Asked

pytestmark = pytest.mark.kvbench(suite="prefix-sharing")


def test_prefix_sharing(kv_check: Asked) -> None:
    """A property of prefix caches holds for every case that was generated."""
    kv_check()
