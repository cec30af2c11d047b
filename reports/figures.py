"""Measurements as panels: memory, prefix sharing, speed, growth; and a plain table of everything else."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kvbench.reports.charts import Bar, Dot, Line, Rule, colour_key, dots, lines, series_key, stacked_bars
from kvbench.reports.frames import Frames, each_row, in_words, plain
from kvbench.units import format_count, format_value

SHARES = (
    ("effective_utilisation", "held", "holds tokens"),
    ("internal_fragmentation", "internal", "internal fragmentation"),
    ("reserved", "reserved", "reserved"),
    ("external_fragmentation", "external", "external fragmentation"),
)
"""Metrics that share one bar: (metric, style, name)."""

SPEED = {
    "decode_tokens_per_second": "Decode, tokens per second",
    "decode_bandwidth": "Decode, bytes read per second",
    "share_of_floor": "Decode, share of the machine's bandwidth",
    "prefill_tokens_per_second": "Prefill, tokens per second",
    "mixed_tokens_per_second": "Mixed batches, tokens per second",
    "append_rate": "Manager: appends per second",
    "lookup_rate": "Manager: lookups per second",
}
SHARING = ("token_hit_ratio", "ideal_token_hit_ratio")
SAVED = ("bytes_saved", "blocks_saved", "memory_saved")
KV_BYTES = "kv_bytes"
GENERATION = "generation_time"
FLOOR = "memory_bandwidth"
RELATIVE = "relative_speed"


@dataclass(frozen=True)
class Panel:
    """A chart with its heading; `legend` has (drawing, name)."""

    heading: str
    under: str
    svg: Markup
    legend: tuple[tuple[Markup, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of text; numbers carry the value that they are sorted by."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, float | None], ...], ...]


def measured(frames: Frames, *metrics: str) -> list[Any]:
    """Rows of these metrics (of all, if none is named) that have a finite value."""
    return [
        row
        for row in each_row(frames.measurements)
        if (not metrics or row.metric in metrics) and row.value is not None and math.isfinite(row.value)
    ]


def _grouped(rows: Sequence[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _common(rows: Sequence[Any]) -> dict[str, Any]:
    """The parameters that all rows have alike."""
    first: dict[str, Any] = dict(rows[0].params)
    return {key: value for key, value in first.items() if all(row.params.get(key) == value for row in rows)}


def _own(row: Any, common: dict[str, Any], but: Sequence[str] = ()) -> str:
    return in_words({key: value for key, value in row.params.items() if key not in common and key not in but})


# --------------------------------------------------------------------------------------------------------------------
# Memory
# --------------------------------------------------------------------------------------------------------------------


def waste_panels(frames: Frames) -> list[Panel]:
    """A panel an adapter and workload: a bar a block size, or a policy. Adapters with the same figures share one."""
    rows = measured(frames, *(metric for metric, _, _ in SHARES))
    common = {workload: _common(group) for workload, group in _grouped(rows, lambda row: row.workload).items()}
    alike: dict[tuple[str, tuple[Bar, ...]], list[str]] = defaultdict(list)
    for (label, workload), group in _grouped(rows, lambda row: (row.label, row.workload)).items():
        alike[workload, tuple(_bars(group, common[workload]))].append(label)
    legend = tuple((colour_key(style), name) for _, style, name in SHARES)
    return [
        Panel(
            ", ".join(labels),
            ", ".join(filter(None, [workload, in_words(common[workload])])),
            stacked_bars(
                bars, f"Memory use of {', '.join(labels)[:200]}: share of slots that hold tokens, by block size."
            ),
            legend,
        )
        for (workload, bars), labels in alike.items()
    ]


def _bars(rows: Sequence[Any], common: dict[str, Any]) -> Iterator[Bar]:
    by_setting = _grouped(rows, lambda row: json.dumps(row.params, sort_keys=True))
    several = len({_setting(group[0].params) for group in by_setting.values()}) < len(by_setting)
    for group in sorted(by_setting.values(), key=lambda group: _size(group[0].params)):
        values = {row.metric: row.value for row in group}
        label = _setting(group[0].params)
        if several:
            label = f"{label}, {_own(group[0], common, ('block_size', 'policy'))}".strip(", ")
        # Rounded, so that adapters that differ by nothing that can be seen share a panel.
        shares = ((style, name, round(values.get(metric, 0.0), 5)) for metric, style, name in SHARES)
        yield Bar(label, tuple(shares))


def _setting(params: dict[str, Any]) -> str:
    if "policy" in params:
        return plain(params["policy"])
    return f"block {plain(params['block_size'])}" if "block_size" in params else "all"


def _size(params: dict[str, Any]) -> float:
    size = params.get("block_size")
    return float(size) if isinstance(size, (int, float)) else math.inf


# --------------------------------------------------------------------------------------------------------------------
# Prefix sharing
# --------------------------------------------------------------------------------------------------------------------


def sharing_panels(frames: Frames) -> list[Panel]:
    """A panel a workload: the hit ratio of each adapter by pool size, under the trace's ideal."""
    ideal = {row.workload: row.value for row in measured(frames, "ideal_token_hit_ratio")}
    panels = []
    for workload, rows in _grouped(measured(frames, "token_hit_ratio"), lambda row: row.workload).items():
        alike: dict[tuple[tuple[float, float], ...], list[str]] = defaultdict(list)
        for label, group in _grouped(rows, lambda row: row.label).items():
            points = {size: round(row.value, 5) for row in group if (size := pool_size(row.params)) > 0}
            if points:
                alike[tuple(sorted(points.items()))].append(label)
        series = [Line(", ".join(labels), points) for points, labels in alike.items()]
        unit = "blocks" if all("pool_tokens" not in row.params for row in rows) else "tokens"
        svg = lines(series, ideal.get(workload), format_count, f"Hit ratio by pool size in {unit}, {workload[:100]}.")
        legend = tuple((series_key(number), line.label) for number, line in enumerate(series))
        panels.append(Panel(workload or "hit ratio", f"hits by pool size in {unit}", svg, legend))
    return panels


def pool_size(params: dict[str, Any]) -> float:
    """Size of a pool in tokens where it is recorded, else in blocks; 0 where neither is."""
    size = params.get("pool_tokens", params.get("pool_blocks"))
    usable = isinstance(size, (int, float)) and not isinstance(size, bool) and 0 < size < 1e30
    return float(size) if usable else 0.0  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------------
# Speed
# --------------------------------------------------------------------------------------------------------------------


def speed_rows(frames: Frames) -> list[Any]:
    """Rows of the known rates, and whatever else the throughput suite measures."""
    return [
        row
        for row in measured(frames)
        if (row.metric in SPEED or row.suite == "throughput") and row.metric not in (FLOOR, RELATIVE)
    ]


def speed_panels(frames: Frames) -> list[Panel]:
    """A panel a metric, workload and machine: fastest first, with intervals, and the machine's bandwidth as a line."""
    order = list(SPEED)
    groups = _grouped(speed_rows(frames), lambda row: (row.machine, row.workload, row.metric))
    placed = sorted(groups, key=lambda key: order.index(key[2]) if key[2] in SPEED else len(order))
    machines = {row.machine for row in each_row(frames.measurements)}
    return [_speed_panel(frames, key, groups[key], name_machine=len(machines) > 1) for key in placed]


def _speed_panel(frames: Frames, key: tuple[str, str, str], rows: list[Any], *, name_machine: bool) -> Panel:
    machine, workload, metric = key
    common = _common(rows)
    labels = [row.label for row in rows]
    made = [
        Dot(
            label=row.label if labels.count(row.label) == 1 else f"{row.label}, {_own(row, common)}",
            value=row.value,
            low=_finite(row.low, row.value),
            high=_finite(row.high, row.value),
            shown=format_value(row.value, row.unit),
            told=f"{row.label}: {format_value(row.value, row.unit)}{_interval(row)}. {row.reason}".strip(),
        )
        for row in sorted(rows, key=lambda row: -row.value)
    ]
    under = ", ".join(filter(None, [workload, in_words(common), machine if name_machine else ""]))
    heading = SPEED.get(metric, metric.replace("_", " "))
    return Panel(heading, under, dots(made, _rule(frames, key, rows[0].unit), f"{heading}, {workload[:100]}"))


def _rule(frames: Frames, key: tuple[str, str, str], unit: str) -> Rule | None:
    machine, workload, metric = key
    if metric == "share_of_floor":
        return Rule(1.0, "the machine's bandwidth")
    if unit != "bytes/s":
        return None
    floors = [row for row in measured(frames, FLOOR) if row.machine == machine]
    floors = [row for row in floors if row.workload == workload] or floors
    if not floors:
        return None
    best = max(row.value for row in floors)
    return Rule(best, f"memory reads {format_value(best, 'bytes/s')}")


def relative_panels(frames: Frames) -> list[Panel]:
    """A panel a workload, baseline and machine: paired ratios around 1, with their verdicts in words."""
    groups = _grouped(
        [row for row in measured(frames, RELATIVE) if row.value > 0],
        lambda row: (row.machine, row.workload, plain(row.params.get("baseline", "the baseline"))),
    )
    panels = []
    for (_, workload, baseline), rows in groups.items():
        made = [
            Dot(
                row.label,
                row.value,
                _finite(row.low, row.value),
                _finite(row.high, row.value),
                _said(row),
                class_=_tone(row),
            )
            for row in sorted(rows, key=lambda row: -row.value)
        ]
        rule = Rule(1.0, f"as fast as {baseline}")
        panels.append(
            Panel(
                f"Against {baseline}",
                workload,
                dots(made, rule, f"Speed against {baseline}, {workload[:100]}", ratio=True),
            )
        )
    return panels


def _said(row: Any) -> str:
    return row.reason[:60] if row.reason else f"{row.value:.2f}x"


def _tone(row: Any) -> str:
    """The verdict's style: what the record says, not what the figure looks like."""
    first = row.reason.split(",")[0].strip()
    return first if first in ("faster", "slower") else "level"


def warnings(frames: Frames) -> list[str]:
    """What the records say against their own figures, once for all metrics of a workload."""
    told = (f"{row.label}, {row.workload}: {row.reason}" for row in speed_rows(frames) if row.reason)
    return list(dict.fromkeys(told))


def untimed(frames: Frames) -> list[str]:
    """What was not measured, and why."""
    return list(
        dict.fromkeys(
            f"{row.label}, {row.metric.replace('_', ' ')}{', ' + row.workload if row.workload else ''}: {row.reason}"
            for row in each_row(frames.measurements)
            if row.verdict == "skip"
        )
    )


def _finite(value: float | None, instead: float) -> float:
    return value if value is not None and math.isfinite(value) else instead


def _interval(row: Any) -> str:
    if row.low is None or row.high is None:
        return ""
    return f" ({format_value(row.low, row.unit)} to {format_value(row.high, row.unit)})"


# --------------------------------------------------------------------------------------------------------------------
# Growth, and everything else
# --------------------------------------------------------------------------------------------------------------------


def growth_panels(frames: Frames) -> list[Panel]:
    """KV bytes of one sequence, a panel a context length; the time of decoding with a cache and without."""
    panels = []
    for workload, context, rows in _by_context(measured(frames, KV_BYTES)):
        made = [Dot(row.label, row.value, row.value, row.value, format_value(row.value, row.unit)) for row in rows]
        panels.append(
            Panel("KV bytes of one sequence", f"{workload}, {context}", dots(made, None, f"KV bytes, {context}"))
        )
    for workload, timed in _grouped(measured(frames, GENERATION), lambda row: row.workload).items():
        made = [
            Dot(
                f"{row.label}, {in_words(row.params)}",
                row.value,
                _finite(row.low, row.value),
                _finite(row.high, row.value),
                format_value(row.value, row.unit),
            )
            for row in sorted(timed, key=lambda row: (_number(row, "steps"), row.label))
        ]
        panels.append(Panel("Time to decode", workload, dots(made, None, f"Time to decode, {workload[:100]}")))
    return panels


def _by_context(rows: Sequence[Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """(workload, context in words, rows), short contexts first, large caches first."""
    ordered = sorted(rows, key=lambda row: (_number(row, "context"), -row.value))
    for (workload, context), group in _grouped(ordered, lambda row: (row.workload, in_words(row.params))).items():
        yield workload, context, group


def _number(row: Any, parameter: str) -> float:
    """A parameter that rows are ordered by; 0 where it is none."""
    value = row.params.get(parameter, 0)
    return float(value) if isinstance(value, int) and abs(value) < 1e30 else 0.0


def measurement_table(frames: Frames, rows: Sequence[Any], caption: str) -> Table:
    """Any measurements as text."""
    columns = ("adapter", "metric", "workload", "for", "value", "interval")
    several = len({row.machine for row in each_row(frames.measurements)}) > 1
    made = []
    for row in rows:
        cells: list[tuple[str, float | None]] = [
            (row.label, None), (row.metric.replace("_", " "), None), (row.workload, None), (in_words(row.params), None),
            (format_value(row.value, row.unit), row.value), (_interval(row).strip(" ()"), None),
        ]  # fmt: skip
        made.append(tuple([*cells, (row.machine, None)] if several else cells))
    return Table(caption, (*columns, "machine") if several else columns, tuple(made))


def other_rows(frames: Frames) -> list[Any]:
    """Measurements that no figure shows."""
    shown = {metric for metric, _, _ in SHARES} | {*SHARING, *SAVED, KV_BYTES, GENERATION, FLOOR, RELATIVE, *SPEED}
    return [row for row in measured(frames) if row.metric not in shown and row.suite not in ("throughput", "growth")]
