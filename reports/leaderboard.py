"""A leaderboard over several result folders: correctness before speed, machine by machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvbench.reports.frames import Frames, Source, each_row, load
from kvbench.reports.page import write_page, write_report
from kvbench.reports.summary import Figure, Glance, GlanceRow, decode_speed, glance
from kvbench.reports.verdicts import standings

TIERS = ("clean", "unjudged", "unchecked", "findings")
"""Best first. Only a clean adapter has a rank, and no speed lifts an adapter out of its tier."""


@dataclass(frozen=True)
class Place:
    """A row: an adapter of one result folder. `rank` is 0 for one that has none.

    elsewhere: folders in which the same version of the adapter has findings. It is as wrong here, only not caught.
    """

    rank: int
    tier: int
    row: GlanceRow
    decode: Figure
    source: Source
    elsewhere: tuple[str, ...]


@dataclass(frozen=True)
class Board:
    """The adapters that were run on one machine."""

    machine: str
    figures: tuple[str, ...]
    places: tuple[Place, ...]


def write_leaderboard(folders: Sequence[Path], out: Path) -> Path:
    """Write `out`/index.html and a report a folder beside it, `out`/SLUG/index.html; return the leaderboard's path.

    Raises `InputError` for a folder that cannot be read, `UsageError` for one that cannot be written.
    """
    frames = load(folders)
    made = boards(frames)
    for source in frames.sources:
        write_report([source.path], out / source.slug)
    return write_page(out / "index.html", "leaderboard.html", {"boards": made})


def boards(frames: Frames) -> list[Board]:
    """A board a machine, in the order of the folders. Figures are only compared inside one."""
    machines = list(dict.fromkeys(source.machine for source in frames.sources))
    return [_board(frames, machine) for machine in machines]


def _board(frames: Frames, machine: str) -> Board:
    here = [index for index, source in enumerate(frames.sources) if source.machine == machine]
    part = dataclasses.replace(
        frames,
        checks=frames.checks[frames.checks["folder"].isin(here)],
        measurements=frames.measurements[frames.measurements["folder"].isin(here)],
    )
    seen = glance(part, standings(part))
    return Board(machine, _without_decode(seen).figures, tuple(_places(frames, part, seen)))


def _without_decode(seen: Glance) -> Glance:
    """The same without its figures of decoding, which rank the rows and have a column of their own."""
    kept = [place for place, name in enumerate(seen.figures) if name != "decode"]
    rows = tuple(dataclasses.replace(row, figures=tuple(row.figures[place] for place in kept)) for row in seen.rows)
    return Glance(seen.suites, tuple(seen.figures[place] for place in kept), rows)


def _places(frames: Frames, part: Frames, seen: Glance) -> list[Place]:
    speed = decode_speed(part)
    sources = _sources(part)
    wrong = _folders_with_findings(frames)

    def elsewhere(row: GlanceRow) -> tuple[str, ...]:
        who = row.standing.who
        return tuple(name for name in wrong.get(_identity(frames, who), ()) if name != sources[who].name)

    def tier(row: GlanceRow) -> int:
        return TIERS.index("findings" if elsewhere(row) else row.standing.state)

    def order(row: GlanceRow) -> tuple[int, float, int, str]:
        figure = speed.get(row.standing.who, Figure())
        return (tier(row), -(figure.value or 0.0), -row.standing.passed, row.standing.who)

    places = []
    for rank, row in enumerate(sorted(_without_decode(seen).rows, key=order), 1):
        who = row.standing.who
        ranked = rank if tier(row) == 0 else 0
        places.append(Place(ranked, tier(row), row, speed.get(who, Figure()), sources[who], elsewhere(row)))
    return places


def _folders_with_findings(frames: Frames) -> dict[tuple[str, str], list[str]]:
    """Names of the folders in which an adapter's version fails a check."""
    found: dict[tuple[str, str], list[str]] = {}
    failed = frames.checks[frames.checks["verdict"] == "fail"]
    for row in each_row(failed.drop_duplicates(["folder", "adapter", "version"])):
        found.setdefault((row.adapter, row.version), []).append(frames.sources[row.folder].name)
    return found


def _identity(frames: Frames, who: str) -> tuple[str, str]:
    """Adapter and version of a name."""
    for frame in (frames.checks, frames.measurements):
        for row in each_row(frame[frame["who"] == who]):
            return (row.adapter, row.version)
    return (who, "")


def _sources(part: Frames) -> Mapping[str, Source]:
    """The folder that each adapter's records are in."""
    return {
        who: part.sources[folder]
        for frame in (part.measurements, part.checks)
        for who, folder in zip(frame["who"], frame["folder"], strict=True)
    }
