"""What `verify`, `run` and `compare` share: collecting records, and leaving a page whatever happens."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.environment import describe
from kvbench.errors import UsageError
from kvbench.reports.page import write_report
from kvbench.results import Record, ResultFolder
from kvbench.verification import Finding


@dataclass
class Session:
    """Records and findings of one run, and the folder they are written to."""

    folder: ResultFolder | None
    records: list[Record] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    page: Path | None = None

    def collect(self, outcomes: Iterable[Record | Finding]) -> None:
        """Keep what `verify` yields, which it has written to the folder itself."""
        for outcome in outcomes:
            if isinstance(outcome, Finding):
                self.findings.append(outcome)
                self.records.append(outcome.record)
            else:
                self.records.append(outcome)

    def measure(self, suite: str, records: Iterable[Record]) -> None:
        """Write and keep the records of a measuring suite, unless a resumed run has them all.

        A suite that was broken off is measured again as a whole, since its figures belong together; what was recorded
        before stands.
        """
        if self.folder is None:
            self.records.extend(records)
        elif self.folder.is_finished(suite):
            self.records.extend(self.folder.recorded(suite))
        else:
            for record in records:
                self.records.append(self.folder.done(record) or self.folder.append(record))
            self.folder.finish(suite)

    @property
    def exit_code(self) -> int:
        """1 if a check failed, or could not be judged, else 0."""
        return 1 if any(record.verdict in ("fail", "error") for record in self.records) else 0


@contextlib.contextmanager
def session(parsed: Namespace) -> Iterator[Session]:
    """A session writing to `--out` if that is given. Its page is written at the end, after an interrupt too."""
    if parsed.out is None:
        if parsed.resume:
            raise UsageError("--resume needs --out DIR, the folder to go on with")
        yield Session(None)
        return
    with ResultFolder(Path(parsed.out), resume=parsed.resume) as folder:
        folder.write_json("environment.json", {"command": parsed.command_line, **describe()})
        running = Session(folder)
        try:
            yield running
        finally:
            if running.records:
                running.page = write_report([folder.path], folder.path)
