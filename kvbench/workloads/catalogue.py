"""Traces by name or by file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType

from kvbench.errors import UsageError
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
        close = get_close_matches(text, TRACES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"unknown trace {text!r}: {hint}known names: {', '.join(TRACES)}; or give the path of a file")
    return load_trace(path, limit)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
