"""Result folders: records appended as they are made, the environment, counterexamples.

A folder holds `results.jsonl` (one record a line), `environment.json`, `counterexamples/*.json` and `index.html`.
Reports are built from these files alone.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvbench.codec import decode, encode
from kvbench.errors import InputError, UsageError

SCHEMA = 1
"""Version of the record schema; a reader refuses records of a later one."""

Verdict = Literal["pass", "fail", "skip", "error"]


@dataclass(frozen=True)
class Record:
    """One check or one measurement. Exactly one of `check` and `metric` is set.

    config: settings of the adapter (precision, ...). workload: name of the trace or shape. params: what else the value
    depends on (block_size, pool_blocks, policy, batch, context, ...).
    value, low, high: the measured value and its 95 % interval, in `unit`; samples: the values behind it.
    verdict, reason: of a check; a skip says why, a failure what was found.
    counterexample: file name below counterexamples/.
    coverage: how often a check's cases reached each named regime.
    """

    suite: str
    adapter: str
    version: str
    check: str | None = None
    metric: str | None = None
    config: dict[str, str] = field(default_factory=dict)
    workload: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    samples: tuple[float, ...] = ()
    verdict: Verdict | None = None
    reason: str = ""
    counterexample: str | None = None
    coverage: dict[str, int] = field(default_factory=dict)
    run: str = ""
    schema: int = SCHEMA

    def identity(self) -> tuple[Any, ...]:
        """What makes two records answers to the same question (for `--resume`)."""
        flat = json.dumps([self.config, self.params], sort_keys=True)
        return (self.suite, self.check, self.metric, self.adapter, self.version, self.workload, flat)


class ResultFolder:
    """A folder that a run writes to, record by record."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        self.run = uuid.uuid4().hex[:12]
        existing = path / "results.jsonl"
        if existing.exists() and not resume:
            raise UsageError(f"{path} already holds results; choose another --out, or add --resume to go on with them")
        try:
            (path / "counterexamples").mkdir(parents=True, exist_ok=True)
            self._done = {record.identity(): record for record in read_records(path)} if existing.exists() else {}
            self._finished = _finished(path) if self._done else []
            _drop_torn_line(existing)
            self._file = existing.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write results to {path}: {error.strerror or error}") from None

    def done(self, record: Record) -> Record | None:
        """The record of an earlier, resumed run that answers the same question."""
        return self._done.get(record.identity())

    def recorded(self, suite: str) -> list[Record]:
        """The measurements of a suite that an earlier, resumed run has made."""
        return [record for record in self._done.values() if record.suite == suite and record.metric]

    def is_finished(self, suite: str) -> bool:
        """Whether an earlier, resumed run has finished measuring a suite."""
        return bool(self._done) and suite in self._finished

    def finish(self, suite: str) -> None:
        """Note that all of a suite's measurements are in the folder."""
        self._finished = sorted({*self._finished, suite})
        self.write_json("finished.json", self._finished)

    def append(self, record: Record) -> Record:
        """Write `record` (stamped with this run's id) so that it survives whatever happens next."""
        stamped = Record(**{**record.__dict__, "run": self.run})
        self._file.write(json.dumps(encode(stamped), allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        return stamped

    def write_json(self, name: str, data: Any) -> Path:
        """Write `data` as JSON to the file `name` of the folder."""
        target = self.path / name
        target.write_text(json.dumps(encode(data), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return target

    def write_counterexample(self, stem: str, data: Any) -> str:
        """Save a counterexample under a name made from `stem`; return the file's name."""
        name = re.sub(r"[^A-Za-z0-9.=-]+", "-", stem).strip("-.")[:120] + ".json"
        self.write_json(f"counterexamples/{name}", data)
        return name

    def close(self) -> None:
        """Close the record file."""
        self._file.close()

    def __enter__(self) -> ResultFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_records(folder: Path) -> Iterator[Record]:
    """The records of a result folder, in order. A last line that a killed run left half written is passed over.

    Raises `InputError` naming the file and line that is not a record.
    """
    path = folder / "results.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise InputError(f"{folder} is not a result folder: it has no results.jsonl") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
        except ValueError:
            if number == len(lines) and not line.endswith("\n"):
                return
            raise InputError(f"{path}:{number}: not a JSON record") from None
        if isinstance(data, dict) and isinstance(data.get("schema"), int) and data["schema"] > SCHEMA:
            raise InputError(
                f"{path}:{number}: schema {data['schema']} is newer than this kvbench reads ({SCHEMA}); upgrade kvbench"
            )
        yield decode(Record, data, f"{path}:{number}")


def read_json(path: Path, limit: int = 64 * 2**20) -> Any:
    """JSON data from a file of at most `limit` bytes. Raises `InputError`."""
    try:
        if path.stat().st_size > limit:
            raise InputError(f"{path} is larger than {limit} bytes; this is not a file that kvbench wrote")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not valid JSON; is the file complete?") from None


def _finished(folder: Path) -> list[str]:
    path = folder / "finished.json"
    return decode(list[str], read_json(path), str(path)) if path.exists() else []


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line without its newline, which a killed run left."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
