"""All of the catalogue, and finding things in it."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from kvbench.errors import UsageError
from kvbench.faults.fault import Control, Fault, FaultClass
from kvbench.interface import Adapter
from kvbench.names import closest

SHELVES = (
    "allocator",
    "forks",
    "prefix",
    "staleness",
    "namespaces",
    "eviction",
    "movement",
    "writes",
    "decode",
    "scores",
    "controls",
)
"""Modules of `kvbench.faults`; the ENTRIES of each are classes and their faults, or controls."""


Entry = TypeVar("Entry", FaultClass, Fault, Control)


def _all(kind: type[Entry]) -> list[Entry]:
    modules = [import_module(f"kvbench.faults.{shelf}") for shelf in SHELVES]
    return sorted((entry for module in modules for entry in module.ENTRIES if isinstance(entry, kind)), key=_order)


def classes() -> list[FaultClass]:
    """Every class, by id."""
    return _all(FaultClass)


def faults() -> list[Fault]:
    """Every fault, by id."""
    return _all(Fault)


def controls() -> list[Control]:
    """Every correct adapter with an unusual habit, by name."""
    return _all(Control)


def _order(entry: FaultClass | Fault | Control) -> tuple[str, int, str]:
    """A1 before A10, and A1a before A1b."""
    digits = "".join(character for character in entry.id if character.isdigit())
    return entry.id[0], int(digits or 0), entry.id


def adapter_named(name: str) -> Adapter:
    """The adapter of the fault or control called `name`. Raises `UsageError` with a suggestion."""
    known: dict[str, Adapter] = {fault.id: fault.adapter for fault in faults()}
    known |= {control.id: control.adapter for control in controls()}
    if name not in known:
        raise UsageError(f"there is no fault {name!r}{closest(name, known)}; kvbench list faults shows them")
    return known[name]


__all__ = ["adapter_named", "classes", "controls", "faults"]
