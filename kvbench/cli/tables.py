"""Terminal tables: verdicts side by side, findings in words, measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from kvbench.results import Record
from kvbench.units import format_value
from kvbench.verification import Finding

if TYPE_CHECKING:
    from rich.console import Console

    from kvbench.cli.session import Session

MARKS = {
    "pass": "[green]pass[/green]",
    "fail": "[bold red]FAIL[/bold red]",
    "skip": "[dim]-[/dim]",
    "error": "[bold yellow]error[/bold yellow]",
}


def column(record: Record) -> str:
    """Heading of an adapter with its configuration."""
    return " ".join([record.adapter, *(value for _, value in sorted(record.config.items()))])


def print_verdicts(console: Console, records: Iterable[Record]) -> None:
    """Checks down, adapters across; the worst answer where a check is asked in several precisions."""
    checks = [record for record in records if record.check]
    adapters = list(dict.fromkeys(record.adapter for record in checks))
    table = Table(title="Checks", title_justify="left", header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("check", no_wrap=True)
    for adapter in adapters:
        table.add_column(escape(adapter), justify="center")
    for name in dict.fromkeys(record.check for record in checks):
        cells = [_verdict_cell([r for r in checks if r.check == name and r.adapter == adapter]) for adapter in adapters]
        table.add_row(escape(str(name)), *cells)
    console.print(table)
    skipped = [record for record in checks if record.verdict == "skip"]
    if skipped:
        console.print(
            f"[dim]-: not asked, {len(skipped)} times; the reasons are in the records (--json) and on the page[/dim]"
        )


def _verdict_cell(records: Sequence[Record]) -> str:
    verdicts = {record.verdict for record in records}
    for verdict in ("fail", "error"):
        hit = [record for record in records if record.verdict == verdict]
        if hit:
            where = ", ".join(sorted({r.config["precision"] for r in hit if "precision" in r.config}))
            return MARKS[verdict] + (f" [red]{escape(where)}[/red]" if where and len(records) > len(hit) else "")
    return MARKS["pass"] if "pass" in verdicts else MARKS["skip"]


def print_findings(console: Console, findings: Sequence[Finding], out: str | None) -> None:
    """Each finding in words, with how to see it again."""
    for number, finding in enumerate(findings, 1):
        record, counterexample = finding.record, finding.counterexample
        console.print()
        console.print(
            f"[bold red]{number}. {escape(column(record))}[/bold red] {escape(record.version)} "
            f"[bold]{escape(str(record.check))}[/bold]"
        )
        console.print(f"   {escape(record.reason)}")
        for line in counterexample.story[:12]:
            console.print(f"   [dim]{escape(line)}[/dim]")
        if len(counterexample.story) > 12:
            console.print(f"   [dim]... {len(counterexample.story) - 12} more lines in the counterexample[/dim]")
        said = f"failed {counterexample.reproduced} repetitions; the reference {counterexample.on_reference}"
        console.print(f"   [dim]{escape(said)}[/dim]")
        if out and record.counterexample:
            console.print(
                f"   kvbench replay {escape(out)}/counterexamples/{escape(record.counterexample)}", soft_wrap=True
            )


def print_measurements(console: Console, records: Iterable[Record]) -> None:
    """One table a suite and workload: adapters and what was varied down, metrics across."""
    measured = [record for record in records if record.metric]
    for suite, workload in dict.fromkeys((record.suite, record.workload) for record in measured):
        chosen = [record for record in measured if (record.suite, record.workload) == (suite, workload)]
        _print_measured(console, f"{suite}: {workload}" if workload else suite, chosen)


COUNTS = frozenset({"events", "tokens", "requests", "sequences"})
"""Units of metrics that explain the others; on a narrow terminal their columns are left to --json and the page."""


def _print_measured(console: Console, title: str, records: Sequence[Record]) -> None:
    varied = _varied(records)
    rows: dict[str, dict[str, str]] = {}
    for record in records:
        # A metric that names its unit ("refused requests") needs no unit in every cell.
        named = record.unit in COUNTS and (str(record.metric).endswith(record.unit) or record.unit == "events")
        cells = rows.setdefault(_row_label(record, varied), {})
        cells[str(record.metric)] = format_value(record.value, "" if named else record.unit)
    label_width = max(map(len, rows))
    headings = _fitting_headings(records, title, console.width - label_width - 4)
    table = Table(title=escape(title), title_justify="left", header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True, min_width=label_width)
    for heading in headings.values():
        table.add_column(escape(heading), justify="right")
    for label, cells in rows.items():
        table.add_row(escape(label), *(escape(cells.get(metric, "")) for metric in headings))
    console.print()
    console.print(table)
    if same := _constant(records, varied):
        console.print(f"[dim]{escape(same)}[/dim]")
    _print_reasons(console, records)


def _print_reasons(console: Console, records: Sequence[Record]) -> None:
    """What was not measured and why, and the verdicts of comparisons."""
    for record in records:
        if record.verdict == "skip" or (record.metric == "relative_speed" and record.reason):
            baseline = record.params.get("baseline")
            against = f" (beside {baseline})" if baseline else ""
            console.print(f"[dim]{escape(column(record))}: {escape(record.reason)}{escape(against)}[/dim]")


def _row_label(record: Record, varied: Sequence[str]) -> str:
    """Adapter, and the value of what was varied: "reference, block size 16"."""
    told = [f"{name.replace('_', ' ')} {_told(record.params[name])}" for name in varied if name in record.params]
    return ", ".join([column(record), *told])


def _fitting_headings(records: Sequence[Record], title: str, width: int) -> dict[str, str]:
    """Metrics and their headings, without the words that the title says; counts only if there is room for them."""
    units = {str(record.metric): record.unit for record in records}
    headings = {metric: " ".join(word for word in metric.split("_") if word not in title) for metric in units}
    needed = sum(max(8, *map(len, heading.split())) + 2 for heading in headings.values())
    if needed <= width:
        return headings
    return {metric: heading for metric, heading in headings.items() if units[metric] not in COUNTS} or headings


def _told(value: object) -> str:
    """A parameter's value; large numbers with separators."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _varied(records: Sequence[Record]) -> list[str]:
    """Parameters that take several values for the same metric of the same adapter: what a table has rows for."""
    seen: dict[tuple[str, str, str], set[str]] = {}
    for record in records:
        for name, value in record.params.items():
            seen.setdefault((column(record), str(record.metric), name), set()).add(_told(value))
    return list(dict.fromkeys(name for (_, _, name), values in seen.items() if len(values) > 1))


def _constant(records: Sequence[Record], varied: Sequence[str]) -> str:
    """Parameters with one value throughout, in words."""
    values: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.params.items():
            values.setdefault(name, set()).add(_told(value))
    kept = {name: found for name, found in values.items() if len(found) == 1 and name not in varied}
    return ", ".join(f"{name.replace('_', ' ')} {next(iter(found))}" for name, found in kept.items())


def print_closing(console: Console, running: Session) -> None:
    """The last lines: how many findings, and where the page is."""
    findings = len(running.findings)
    if any(record.check for record in running.records):
        console.print()
        told = "1 finding" if findings == 1 else f"{findings} findings"
        console.print(f"[bold red]{told}[/bold red]" if findings else "[green]no findings[/green]")
    for record in running.records:
        if record.verdict == "error":
            console.print(
                f"[yellow]not judged: {escape(column(record))} {escape(f'{record.check}: {record.reason}')}[/yellow]"
            )
    if running.page is not None:
        console.print(f"page: {escape(str(running.page))}", soft_wrap=True)
