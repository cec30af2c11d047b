"""A failing case as a small file: what was done, to what, what came out, and how to see it again."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench import __version__
from kvbench.codec import decode, encode
from kvbench.errors import InputError
from kvbench.results import read_json
from kvbench.timeline import Timeline

# Reading a counterexample needs no adapter and no torch: reports do it.
if TYPE_CHECKING:
    from kvbench.checks import Check, Failure
    from kvbench.subject import Subject

SCHEMA = 1


@dataclass(frozen=True)
class Counterexample:
    """A failing case.

    check: name of the check that failed. adapter: the spec that the adapter was loaded by.
    case: the check's case (see `Check.case_type`), everything that is needed to run it again.
    message, story, timeline: what was found. reproduced: how many of how many runs failed.
    on_reference: what the reference says of the same case: "passes", or why it cannot be asked.
    versions: of kvbench, Python, torch and the engine.
    """

    check: str
    adapter: str
    version: str
    config: dict[str, str]
    seed: int
    case: dict[str, Any]
    message: str
    story: tuple[str, ...] = ()
    timeline: Timeline | None = None
    reproduced: str = ""
    on_reference: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA


def make_counterexample(check: Check, subject: Subject, spec: str, failure: Failure, seed: int) -> Counterexample:
    """The counterexample of a failure found on `subject`, which was loaded by `spec`."""
    return Counterexample(
        check=check.name,
        adapter=spec,
        version=subject.adapter.version,
        config=dict(subject.config),
        seed=seed,
        case=encode(failure.case),
        message=failure.violation.message,
        story=failure.violation.story,
        timeline=failure.violation.timeline,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions that a reader needs to reproduce a run."""
    found = {"kvbench": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in ("torch", "triton", "hypothesis", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def read_counterexample(path: Path) -> Counterexample:
    """The counterexample saved at `path`. Raises `InputError`."""
    data = read_json(path)
    if not isinstance(data, dict) or "check" not in data or "case" not in data:
        raise InputError(f"{path} is not a counterexample: it has no check and case")
    if isinstance(data.get("schema"), int) and data["schema"] > SCHEMA:
        raise InputError(f"{path}: schema {data['schema']} is newer than this kvbench reads ({SCHEMA})")
    return decode(Counterexample, data, str(path))
