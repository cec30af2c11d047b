"""What the catalogue is made of: classes of faults, faults that are alive, and controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvbench.errors import CacheError
from kvbench.interface import Adapter
from kvbench.subject import REFERENCE, EngineError, Subject

Component = Literal[
    "allocator", "prefix", "security", "eviction", "cow", "scheduler", "swap", "kernel_write", "kernel_decode",
    "kernel_prefill", "quant", "perf",
]  # fmt: skip

Trigger = Callable[[Subject], str | None]
"""A fixed script that makes a fault show: what went wrong in words, or None where all is as it should be."""


@dataclass(frozen=True)
class FaultClass:
    """A way in which released caches have failed.

    id: "A1". difficulty: 1 any reasonable test finds it .. 5 needs several coincidences. about: what such a cache does,
    in a sentence. reports: public identifiers that it stands for, "owner/repository#number" or "...@commit".
    """

    id: str
    name: str
    component: Component
    difficulty: int
    about: str
    reports: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """One variant of a class: an adapter that is right but for one thing.

    id: the class's id and a letter, "A1a". about: what it does wrong. trigger: proves that the fault is alive, and is
    never shown to the suites. clean: the adapter that the fault was put into, right under the same trigger. needs: what
    an adapter must offer for the fault to be possible, in words. config: settings under which it shows.
    """

    id: str
    about: str
    adapter: Adapter
    trigger: Trigger
    clean: Adapter = REFERENCE
    needs: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def class_id(self) -> str:
        """The class it belongs to."""
        return self.id[:-1]


@dataclass(frozen=True)
class Control:
    """A correct adapter with an unusual habit that must never be called a fault. id: what it is listed as."""

    id: str
    about: str
    adapter: Adapter


def pulled(trigger: Trigger, adapter: Adapter, config: Mapping[str, str]) -> str | None:
    """What `trigger` sees of `adapter`; an error of the cache is something to see, too."""
    try:
        return trigger(Subject(adapter, dict(config)))
    except (EngineError, CacheError) as error:
        return f"{type(error).__name__}: {error}"


def alive(fault: Fault) -> bool:
    """Whether the fault shows under its trigger, and does not without the fault."""
    broken = pulled(fault.trigger, fault.adapter, fault.config)
    return broken is not None and pulled(fault.trigger, fault.clean, fault.config) is None


__all__ = ["Component", "Control", "Fault", "FaultClass", "Trigger", "alive", "pulled"]
