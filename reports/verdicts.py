"""What the checks found: who is clean, the matrix of checks, and the findings."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvbench.counterexample import Counterexample
from kvbench.reports.block_timeline import TimelineFigure, draw_timeline
from kvbench.reports.frames import Frames, each_row, is_plain_name

State = Literal["clean", "findings", "unjudged", "unchecked"]

MAX_DRAWN = 40
"""Findings whose timeline is drawn; a page with more of them is no longer read, and grows by 100 kB each."""

MAX_CASE = 6000
"""Characters of a case that are printed on the page; the file has all of it."""


@dataclass(frozen=True)
class Standing:
    """An adapter's checks, counted by name: one that fails in any configuration fails.

    unjudged: checks that ended in an error of their own. skipped: asked in no configuration.
    """

    who: str
    version: str
    passed: int = 0
    failed: int = 0
    unjudged: int = 0
    skipped: int = 0

    @property
    def asked(self) -> int:
        """Checks that were asked of the adapter."""
        return self.passed + self.failed + self.unjudged

    @property
    def state(self) -> State:
        """Whether the adapter is clean; one that was asked nothing is not."""
        if self.failed:
            return "findings"
        if self.unjudged:
            return "unjudged"
        return "clean" if self.passed else "unchecked"

    @property
    def in_words(self) -> str:
        """The state for a table cell."""
        if self.state == "findings":
            return f"{self.failed} {'finding' if self.failed == 1 else 'findings'}"
        return {"clean": "clean", "unjudged": "not judged", "unchecked": "not checked"}[self.state]


def standings(frames: Frames) -> list[Standing]:
    """The adapters in the order of their records, without what only serves to compare with."""
    checked = {who: _standing(who, rows) for who, rows in _by(frames, "who").items()}
    for row in each_row(frames.measurements):
        if row.who not in checked and row.adapter not in _measured_beside(frames):
            checked[row.who] = Standing(row.who, row.version)
    return list(checked.values())


def _measured_beside(frames: Frames) -> set[str]:
    """What is measured but is no contestant: the baselines that ratios name, and `OF_NO_ADAPTER`."""
    ratios = [row for row in each_row(frames.measurements) if "baseline" in row.params]
    baselines = {str(row.params["baseline"]) for row in ratios} - {row.adapter for row in ratios}
    others = {row.adapter for row in each_row(frames.measurements) if row.suite != SUITE_OF_NO_ADAPTER}
    return baselines | OF_NO_ADAPTER | ({row.adapter for row in each_row(frames.measurements)} - others)


OF_NO_ADAPTER = frozenset({"machine", "trace", "baselines"})
"""Names under which the suites record what belongs to no adapter."""

SUITE_OF_NO_ADAPTER = "growth"
"""All that it measures belongs to none: models, and decoding with a cache and without."""


def _by(frames: Frames, *columns: str) -> dict[Any, list[Any]]:
    """Rows of checks by one column, or by several as a tuple, in order."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in each_row(frames.checks):
        key = tuple(getattr(row, column) for column in columns)
        groups[key if len(columns) > 1 else key[0]].append(row)
    return groups


def worst(verdicts: Iterable[str]) -> str:
    """One verdict for a check that was asked in several configurations."""
    found = set(verdicts)
    return next((verdict for verdict in ("fail", "error", "pass") if verdict in found), "skip")


def _standing(who: str, rows: Sequence[Any]) -> Standing:
    verdicts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        verdicts[row.suite, row.check].append(row.verdict)
    final = [worst(found) for found in verdicts.values()]
    return Standing(
        who, rows[0].version, final.count("pass"), final.count("fail"), final.count("error"), final.count("skip")
    )


# --------------------------------------------------------------------------------------------------------------------
# The headline
# --------------------------------------------------------------------------------------------------------------------

Words = tuple[tuple[str, str], ...]
"""Words with the style that each piece is set in ("" for none)."""


def headline(found: Sequence[Standing]) -> Words:
    """One sentence or two: who is clean, and who is not."""
    clean, failing, unjudged, unchecked = (
        [standing for standing in found if standing.state == state]
        for state in ("clean", "findings", "unjudged", "unchecked")
    )
    if len(clean) == len(found) > 2:
        return (("All ", ""), (f"{len(found)} adapters", "clean"), (" are clean.", ""))
    sentences = []
    if clean:
        verb = " is clean." if len(clean) == 1 else " are clean."
        sentences.append([*_listed([[(standing.who, "clean")] for standing in clean]), (verb, "")])
    if failing:
        sentences.append([*_listed([_fails(s, first=s is failing[0]) for s in failing]), (".", "")])
    if unjudged:
        end = (" could not be judged on every check.", "")
        sentences.append([*_listed([[(standing.who, "unjudged")] for standing in unjudged]), end])
    if not sentences:
        return ((("Measured, not checked." if found else "Nothing has been recorded yet."), ""),)
    if unchecked:
        verb = " was not checked." if len(unchecked) == 1 else " were not checked."
        sentences.append([*_listed([[(standing.who, "unchecked")] for standing in unchecked]), (verb, "")])
    return tuple(word for number, words in enumerate(sentences) for word in [*([(" ", "")] if number else []), *words])


def _fails(standing: Standing, *, first: bool) -> list[tuple[str, str]]:
    noun = "" if not first else " check" if standing.failed == 1 else " checks"
    return [(standing.who, "findings"), (f" fails {standing.failed}{noun}", "")]


def _listed(parts: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Parts with commas and a last "and" between them."""
    words: list[tuple[str, str]] = []
    for position, part in enumerate(parts):
        if position:
            words.append((" and " if position == len(parts) - 1 else ", ", ""))
        words += part
    return words


# --------------------------------------------------------------------------------------------------------------------
# The matrix
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A check of an adapter. `told` is for a pointer that rests on it, `anchor` leads to the finding."""

    verdict: str
    shown: str
    told: str
    anchor: str = ""


@dataclass(frozen=True)
class SuiteMatrix:
    """The checks of a suite: (check's name without the suite's, a cell an adapter)."""

    suite: str
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class Skipped:
    """Checks that an adapter was not asked, for one reason."""

    who: str
    reason: str
    checks: tuple[str, ...]


def matrix(frames: Frames, adapters: Sequence[str], found: Sequence[Finding]) -> list[SuiteMatrix]:
    """Checks down, `adapters` across, a part a suite."""
    anchors = {(finding.who, finding.check): finding.anchor for finding in found}
    cells = _by(frames, "suite", "check", "who")
    suites: dict[str, dict[str, None]] = defaultdict(dict)
    for suite, check, _ in cells:
        suites[suite][check] = None
    return [
        SuiteMatrix(
            suite,
            tuple(
                (
                    check.removeprefix(f"{suite}.").replace("_", " "),
                    tuple(_cell(cells.get((suite, check, who), []), anchors.get((who, check), "")) for who in adapters),
                )
                for check in checks
            ),
        )
        for suite, checks in suites.items()
    ]


def _cell(rows: Sequence[Any], anchor: str) -> Cell:
    if not rows:
        return Cell("none", "", "not run")
    verdict = worst(row.verdict for row in rows)
    hits = [row for row in rows if row.verdict == verdict]
    asked = [row for row in rows if row.verdict != "skip"]
    where = [row.config.removeprefix("precision ") for row in hits if row.config]
    if verdict == "fail":
        partly = len(asked) > len(hits) and where
        return Cell("fail", f"fails in {', '.join(where)}" if partly else "fails", hits[0].reason, anchor)
    if verdict == "error":
        return Cell("error", "not judged", hits[0].reason, anchor)
    if verdict == "skip":
        return Cell("skip", "not asked", "; ".join(dict.fromkeys(row.reason for row in rows if row.reason)))
    cases = sum(row.cases for row in hits if row.cases is not None)
    told = f"{cases:,.0f} cases" if cases else "passes"
    return Cell("pass", "pass", told + (f" in {', '.join(where)}" if where else ""))


def skipped(frames: Frames) -> list[Skipped]:
    """Every check that was not asked, by adapter and reason."""
    groups: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for row in each_row(frames.checks):
        if row.verdict == "skip":
            name = f"{row.check} ({row.config})" if row.config else row.check
            groups[row.who, row.reason or "no reason was recorded"][name] = None
    return [Skipped(who, reason, tuple(checks)) for (who, reason), checks in groups.items()]


# --------------------------------------------------------------------------------------------------------------------
# Findings
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A failure in one configuration. `command` replays it; empty, with `missing` saying why, where that cannot be."""

    config: str
    message: str
    counterexample: Counterexample | None
    link: str
    command: str
    missing: str
    figure: TimelineFigure | None
    case: str


@dataclass(frozen=True)
class Finding:
    """A check that an adapter fails (or that could not be judged), with the failure of each configuration."""

    anchor: str
    who: str
    version: str
    suite: str
    check: str
    judged: bool
    instances: tuple[Instance, ...]


def findings(frames: Frames) -> list[Finding]:
    """Failures first, then what could not be judged; in each, adapters in the order of their records."""
    groups = _by(frames, "who", "suite", "check")
    bad = [(key, [row for row in rows if row.verdict in ("fail", "error")]) for key, rows in groups.items()]
    bad = [(key, rows) for key, rows in bad if rows]
    bad.sort(key=lambda item: all(row.verdict == "error" for row in item[1]))
    made = []
    for number, ((who, suite, check), rows) in enumerate(bad, 1):
        instances = tuple(
            _instance(frames, row, f"t{number}-{place}", draw=number <= MAX_DRAWN and place < 4)
            for place, row in enumerate(rows)
        )
        judged = any(row.verdict == "fail" for row in rows)
        made.append(Finding(f"finding-{number}", who, rows[0].version, suite, check, judged, instances))
    return made


def _instance(frames: Frames, row: Any, key: str, *, draw: bool) -> Instance:
    source = frames.sources[row.folder]
    name = row.counterexample
    counterexample = source.counterexamples.get(name) if name else None
    if counterexample is None:
        missing = "No counterexample was saved."
        if name:
            missing = (
                "Its counterexample is not in the folder."
                if is_plain_name(name)
                else "Its counterexample has no plain file name and was not read."
            )
        return Instance(row.config, row.reason, None, "", "", missing, None, "")
    link = counterexample_path(frames, row.folder, name)
    case = json.dumps(counterexample.case, ensure_ascii=False)
    return Instance(
        config=row.config,
        message=row.reason or counterexample.message,
        counterexample=counterexample,
        link=link,
        command=f"kvbench replay {shlex.quote(link)}",
        missing="",
        figure=draw_timeline(counterexample.timeline, key) if draw and counterexample.timeline else None,
        case=case if len(case) <= MAX_CASE else case[:MAX_CASE] + " ... (the file has the rest)",
    )


def counterexample_path(frames: Frames, folder: int, name: str) -> str:
    """Where a counterexample lies, from the page's folder. Several folders have a folder each."""
    below = "" if len(frames.sources) == 1 else f"{frames.sources[folder].slug}/"
    return f"counterexamples/{below}{name}"
