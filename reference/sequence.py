"""What a manager knows about one sequence."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvbench.interface import HOLE
from kvbench.reference.prefix import Prefix


class Place(enum.Enum):
    """Where the K/V of a sequence rests."""

    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped out"


@dataclass
class SequenceState:
    """What the manager knows about one sequence.

    tables: one a group; device blocks while running, host blocks while swapped out, empty while preempted.
    committed: leading tokens whose K/V exists. published: leading full blocks that have been offered to the cache.
    chain: the namespace's root, then the prefixes of the leading full blocks; empty if the K/V may not be shared.
    """

    namespace: str | None
    tokens: list[int]
    tables: list[list[int]]
    committed: int = 0
    published: int = 0
    chain: list[Prefix] = field(default_factory=list)
    place: Place = Place.RUNNING

    def blocks(self) -> list[int]:
        """Every block in the tables, holes left out."""
        return held_blocks(self.tables)


def held_blocks(tables: Sequence[Sequence[int]]) -> list[int]:
    """The entries of `tables` that are blocks, holes left out."""
    return [block for table in tables for block in table if block != HOLE]
