"""Traces by name or by file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvbench.errors import UsageError
from kvbench.names import closest
from kvbench.workloads.generate import generate
from kvbench.workloads.load import load_trace
from kvbench.workloads.statistics import WORKLOADS
from kvbench.workloads.trace import Trace


@dataclass(frozen=True)
class NamedTrace:
    """An entry of `kvbench list traces`. generate: the trace of a seed."""

    name: str
    about: str
    source: str
    count: int
    shares_prefixes: bool
    generate: Callable[[int], Trace]


TRACES: Mapping[str, NamedTrace] = MappingProxyType(
    {
        known.name: NamedTrace(
            known.name, known.about, known.source, known.count, known.sharing is not None, partial(generate, known)
        )
        for known in WORKLOADS
    }
)


def list_traces() -> Iterator[dict[str, Any]]:
    """A row for each named trace, for `kvbench list traces`."""
    for known in TRACES.values():
        shares = "yes" if known.shares_prefixes else "no"
        yield {
            "name": known.name,
            "requests": known.count,
            "shared prefixes": shares,
            "about": known.about,
            "source": known.source,
        }


def get_trace(name_or_path: str | Path, limit: int | None = None, seed: int = 0) -> Trace:
    """The named trace of that seed, or the trace in the file; its first `limit` requests.

    Raises `UsageError` for a name that is neither, `InputError` for a file that cannot be read.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"a limit of {limit} requests leaves nothing to measure; give at least 1")
    text = str(name_or_path)
    known = TRACES.get(text)
    if known is not None:
        return known.generate(seed).first(limit)
    path = Path(text)
    if path.name == text and not path.suffix and not _exists(path):
        raise UsageError(
            f"unknown trace {text!r}{closest(text, TRACES)}; use one of {', '.join(TRACES)}, or the path of a file"
        )
    return load_trace(path, limit)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
