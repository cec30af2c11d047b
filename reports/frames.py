"""Result folders as pandas frames: one row a check, one row a measurement."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvbench.counterexample import Counterexample, read_counterexample
from kvbench.errors import InputError, UsageError
from kvbench.results import Record, read_json, read_records
from kvbench.units import format_bytes

CHECK_COLUMNS = [
    "folder", "adapter", "version", "who", "suite", "check", "config", "verdict", "reason", "cases", "seed",
    "counterexample",
]  # fmt: skip
MEASUREMENT_COLUMNS = [
    "folder", "machine", "adapter", "version", "who", "label", "suite", "metric", "workload", "config", "params",
    "value", "low", "high", "unit", "verdict", "reason",
]  # fmt: skip

MACHINE_KEYS = ("cpu", "gpu", "cores", "threads", "memory_bytes")
"""What makes two environments the same machine: figures are only compared where all of these agree."""


@dataclass(frozen=True)
class Source:
    """A result folder.

    name: for people. slug: safe in a path or an address, and unlike that of any other source.
    counterexamples: those that records name and that are there, by file name.
    """

    path: Path
    name: str
    slug: str
    environment: Mapping[str, Any]
    machine: str
    counterexamples: Mapping[str, Counterexample]


@dataclass(frozen=True)
class Frames:
    """Everything that was read.

    checks: `CHECK_COLUMNS`, one row a check and configuration. measurements: `MEASUREMENT_COLUMNS`. In both, `folder`
    is the position in `sources`, `who` the adapter by a name that no other has (its version or folder is added where
    it must be), and `label` that name with the configuration.
    """

    sources: tuple[Source, ...]
    checks: pd.DataFrame
    measurements: pd.DataFrame


def load(folders: Sequence[Path]) -> Frames:
    """Read result folders. Raises `InputError`, in one line, for a folder that is none or is damaged."""
    unique = list({folder.resolve(): folder for folder in folders}.values())
    if not unique:
        raise UsageError("no result folder was given; name one or more that kvbench wrote with --out")
    records = [_latest(read_records(folder)) for folder in unique]
    slugs = _slugs(unique)
    sources = tuple(
        _source(folder, slug, found, alone=len(unique) == 1)
        for folder, slug, found in zip(unique, slugs, records, strict=True)
    )
    names = _names([(i, record) for i, found in enumerate(records) for record in found], sources)
    checks, measurements = [], []
    for index, found in enumerate(records):
        for record in found:
            who = names[index, record.adapter, record.version]
            if record.check is not None:
                checks.append(_check_row(index, who, record))
            elif record.metric is not None:
                measurements.append(_measurement_row(index, who, sources[index].machine, record))
    return Frames(
        sources,
        pd.DataFrame(checks, columns=CHECK_COLUMNS, dtype=object),
        pd.DataFrame(measurements, columns=MEASUREMENT_COLUMNS, dtype=object),
    )


def each_row(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a frame, with its columns as attributes."""
    yield from frame.itertuples(index=False)


def _latest(records: Iterable[Record]) -> list[Record]:
    """One record a question: the last answer, where a run was resumed."""
    return list({record.identity(): record for record in records}.values())


def _source(folder: Path, slug: str, records: Iterable[Record], *, alone: bool) -> Source:
    environment = _environment(folder)
    name = folder.resolve().name or "results"
    return Source(
        folder, name, slug, environment, _machine(environment, "" if alone else name), _counterexamples(folder, records)
    )


def _environment(folder: Path) -> Mapping[str, Any]:
    path = folder / "environment.json"
    if not path.exists():
        return {}
    data = read_json(path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected an object, found {type(data).__name__}")
    return data


def _counterexamples(folder: Path, records: Iterable[Record]) -> dict[str, Counterexample]:
    """Those that records name. A name that is not a plain one is never opened."""
    found = {}
    for name in sorted({record.counterexample for record in records if record.counterexample}):
        path = folder / "counterexamples" / name
        if is_plain_name(name) and path.is_file():
            found[name] = read_counterexample(path)
    return found


def is_plain_name(name: str) -> bool:
    """Whether `name` is a file name as kvbench writes them, and nothing that leads elsewhere."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,199}\.json", name) is not None


def _machine(environment: Mapping[str, Any], folder: str) -> str:
    """The machine in words. One that is not recorded is like no other."""
    parts = [str(environment[key]) for key in ("gpu", "cpu") if environment.get(key)]
    if not parts:
        return f"a machine that was not recorded ({folder})" if folder else "a machine that was not recorded"
    cores, threads, memory = (environment.get(key) for key in ("cores", "threads", "memory_bytes"))
    if cores:
        parts.append(f"{cores} core{'' if cores == 1 else 's'}")
    if threads and threads != cores:
        parts.append(f"{threads} thread{'' if threads == 1 else 's'}")
    if isinstance(memory, (int, float)) and memory:
        parts.append(format_bytes(float(memory)))
    return ", ".join(part[:120] for part in parts)


def _slugs(folders: Sequence[Path]) -> list[str]:
    slugs: list[str] = []
    for folder in folders:
        stem = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:60].strip("-") or "results"
        slug, number = stem, 2
        while slug in slugs:
            slug, number = f"{stem}-{number}", number + 1
        slugs.append(slug)
    return slugs


def _names(records: Sequence[tuple[int, Record]], sources: Sequence[Source]) -> dict[tuple[int, str, str], str]:
    """The shortest name of each adapter, version and folder that tells it from the others."""
    keys = list(dict.fromkeys((index, record.adapter, record.version) for index, record in records))
    names = {}
    for index, adapter, version in keys:
        same = [key for key in keys if key[1] == adapter]
        name = adapter
        if len({key[2] for key in same}) > 1:
            name = f"{adapter} {version}".strip()
        if sum(key[2] == version for key in same) > 1:
            name = f"{name} ({sources[index].slug})"
        names[index, adapter, version] = name
    return names


def _check_row(folder: int, who: str, record: Record) -> list[Any]:
    return [
        folder, record.adapter, record.version, who, record.suite, record.check, in_words(record.config),
        record.verdict or "error", record.reason, record.value, record.params.get("seed"), record.counterexample,
    ]  # fmt: skip


def _measurement_row(folder: int, who: str, machine: str, record: Record) -> list[Any]:
    label = " ".join([who, *(value for _, value in sorted(record.config.items()))])
    return [
        folder, machine, record.adapter, record.version, who, label, record.suite, record.metric, record.workload,
        in_words(record.config), record.params, record.value, record.low, record.high, record.unit, record.verdict,
        record.reason,
    ]  # fmt: skip


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings or parameters as people read them: "precision f16, block size 32"."""
    return ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in settings.items() if key != "seed")


def plain(value: Any) -> str:
    """A parameter's value in at most 60 characters."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = f"{value:,}" if abs(value) < 10**15 else "very large"
    elif isinstance(value, float):
        text = f"{value:.4g}"
    elif isinstance(value, str):
        text = value
    else:
        text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
