"""Suggestions for names that were mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """A question such as " (did you mean 'x'?)" when `name` looks like a known one, else nothing."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return f" (did you mean {by_folded[matches[0]]!r}?)" if matches else ""
