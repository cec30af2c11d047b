"""Pages of saved results: one report, or several with an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvbench.reports.frames import Source, load
from kvbench.reports.page import write_page, write_report
from kvbench.reports.summary import day
from kvbench.reports.verdicts import Standing, Words, headline, standings


@dataclass(frozen=True)
class Run:
    """A result folder in the index."""

    source: Source
    day: str
    headline: Words
    standings: tuple[Standing, ...]


def write_site(folders: Sequence[Path], out: Path) -> Path:
    """Write a report of one folder to `out`, or of several to `out`/SLUG with an index; return the page to open.

    Raises `InputError` for a folder that cannot be read, `UsageError` for one that cannot be written.
    """
    sources = load(folders).sources
    if len(sources) == 1:
        return write_report([sources[0].path], out)
    runs = []
    for source in sources:
        found = standings(load([source.path]))
        runs.append(Run(source, day(source.environment), headline(found), tuple(found)))
        write_report([source.path], out / source.slug)
    return write_page(out / "index.html", "index.html", {"runs": runs})
