"""What a reader takes in first: a row an adapter, and the run's environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.reports.figures import measured, pool_size
from kvbench.reports.frames import Frames, plain
from kvbench.reports.verdicts import Standing, worst
from kvbench.units import format_bytes, format_value

USUAL_BLOCK = 16
"""Block size whose utilisation stands for an adapter in the summary: what most engines run with."""


@dataclass(frozen=True)
class Figure:
    """A value in the summary, with what it was measured on."""

    shown: str = ""
    under: str = ""
    value: float | None = None


@dataclass(frozen=True)
class SuiteCount:
    """A suite's checks of an adapter."""

    verdict: str
    shown: str
    under: str = ""


@dataclass(frozen=True)
class GlanceRow:
    """An adapter in the summary."""

    standing: Standing
    suites: tuple[SuiteCount, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Glance:
    """The summary; figures that nobody has a value of are not in it."""

    suites: tuple[str, ...]
    figures: tuple[str, ...]
    rows: tuple[GlanceRow, ...]


def glance(frames: Frames, found: Sequence[Standing]) -> Glance:
    """The summary of `found`, in its order."""
    suites = list(dict.fromkeys(frames.checks["suite"]))
    columns = {
        "memory in use": _utilisation(frames),
        "prefix hits": _hits(frames),
        "decode": decode_speed(frames),
    }
    columns = {name: values for name, values in columns.items() if values}
    rows = tuple(
        GlanceRow(
            standing,
            tuple(_suite_count(frames, standing.who, suite) for suite in suites),
            tuple(values.get(standing.who, Figure()) for values in columns.values()),
        )
        for standing in found
    )
    return Glance(tuple(suites), tuple(columns), rows)


def _suite_count(frames: Frames, who: str, suite: str) -> SuiteCount:
    checks = frames.checks
    rows = checks[(checks["who"] == who) & (checks["suite"] == suite)]
    verdicts = [worst(group) for _, group in rows.groupby("check", sort=False)["verdict"]]
    failed, errors, passed = (verdicts.count(verdict) for verdict in ("fail", "error", "pass"))
    skipped = verdicts.count("skip")
    under = f"{skipped} not asked" if skipped else ""
    if failed:
        return SuiteCount("fail", f"{failed} of {failed + errors + passed} fail", under)
    if errors:
        return SuiteCount("error", f"{errors} not judged", under)
    if passed:
        return SuiteCount("pass", f"{passed} pass", under)
    return SuiteCount("skip", "not asked" if skipped else "not run")


def _utilisation(frames: Frames) -> dict[str, Figure]:
    """At the usual block size, else at the nearest; of policies, the one that is there."""
    best: dict[str, tuple[float, Any]] = {}
    for row in measured(frames, "effective_utilisation"):
        size = row.params.get("block_size")
        far = abs(size - USUAL_BLOCK) if isinstance(size, (int, float)) else 0.5
        if row.who not in best or far < best[row.who][0]:
            best[row.who] = (far, row)
    return {
        who: Figure(format_value(row.value, "ratio"), _setting(row.params), row.value) for who, (_, row) in best.items()
    }


def _setting(params: Mapping[str, Any]) -> str:
    return plain(params["policy"]) if "policy" in params else f"block {plain(params.get('block_size', ''))}"


def _hits(frames: Frames) -> dict[str, Figure]:
    """With the largest pool, beside the trace's ideal."""
    ideal = {row.workload: row.value for row in measured(frames, "ideal_token_hit_ratio")}
    rows = sorted(measured(frames, "token_hit_ratio"), key=lambda row: pool_size(row.params))
    best = {row.who: row for row in rows}
    return {
        who: Figure(
            format_value(row.value, "ratio"),
            f"of {format_value(ideal[row.workload], 'ratio')} ideal" if row.workload in ideal else "largest pool",
            row.value,
        )
        for who, row in best.items()
    }


def decode_speed(frames: Frames) -> dict[str, Figure]:
    """Decoding on the workload that most adapters were timed on, in each one's first configuration.

    As a share of the machine's bandwidth where that was measured, else as a bandwidth or a rate.
    """
    for metric in ("share_of_floor", "decode_bandwidth", "decode_tokens_per_second"):
        rows = measured(frames, metric)
        if not rows:
            continue
        takers: dict[str, set[str]] = {}
        for row in rows:
            takers.setdefault(row.workload, set()).add(row.who)
        workload = max(takers, key=lambda name: len(takers[name]))
        chosen: dict[str, Figure] = {}
        for row in rows:
            if row.workload == workload and row.who not in chosen:
                under = "of bandwidth" if metric == "share_of_floor" else workload
                chosen[row.who] = Figure(format_value(row.value, row.unit), under, row.value)
        return chosen
    return {}


# --------------------------------------------------------------------------------------------------------------------
# The run
# --------------------------------------------------------------------------------------------------------------------


def environment_rows(frames: Frames) -> list[tuple[str, tuple[str, ...]]]:
    """(name, a value a source) of everything that environments record, nested parts flattened."""
    flat = [_flat(source.environment) for source in frames.sources]
    names = list(dict.fromkeys(name for values in flat for name in values))
    return [(name, tuple(values.get(name, "") for values in flat)) for name in names]


def _flat(environment: Mapping[str, Any], depth: int = 0) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in environment.items():
        name = str(key).replace("_", " ")
        if value is None or value == "":
            continue
        if isinstance(value, dict) and depth < 2:
            prefix = "" if key == "versions" else f"{name}: "
            values |= {f"{prefix}{inner}": text for inner, text in _flat(value, depth + 1).items()}
        elif isinstance(value, (int, float)) and str(key).endswith("_bytes"):
            values[name.removesuffix(" bytes")] = format_bytes(float(min(value, 10**30)))
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            values[name] = shlex.join(value)[:600]
        else:
            values[name] = value[:600] if isinstance(value, str) else plain(value)
    return values


def commands(frames: Frames) -> list[tuple[str, str]]:
    """(what for, command): how to make the run again, and its pages."""
    made: list[tuple[str, str]] = []
    for source in frames.sources:
        recorded = source.environment.get("command")
        if isinstance(recorded, list) and recorded and all(isinstance(item, str) for item in recorded):
            made.append((f"Run again what made {source.name}", shlex.join(recorded)))
    if not made and len(frames.checks):
        names = list(dict.fromkeys(frames.checks["adapter"]))
        seeds = [seed for seed in frames.checks["seed"] if isinstance(seed, int)]
        seed = ["--seed", str(seeds[0])] if seeds else []
        made.append(
            ("Check the same adapters again", shlex.join(["kvbench", "verify", *names, *seed, "--out", "again"]))
        )
    folders = [source.path.name or "." for source in frames.sources]
    made.append(("Build these pages again", shlex.join(["kvbench", "report", *folders, "--out", "site"])))
    return made


def day(environment: Mapping[str, Any]) -> str:
    """The day of a run, as recorded; empty where it is not."""
    time = environment.get("time")
    return time[:10] if isinstance(time, str) else ""
