"""What a measurement yields: one number and what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Progress = Callable[[str, int, int], None]
"""Told what is being measured, how many parts of it are done, and how many there are."""


def unwatched(text: str, done: int, total: int) -> None:
    """A `Progress` that tells nobody."""


@dataclass(frozen=True)
class Row:
    """A measured number. metric: its name (DESIGN: ratios are 0..1). params: block_size, policy, pool_tokens, ..."""

    metric: str
    value: float
    unit: str
    params: Mapping[str, object] = field(default_factory=dict)
