"""Terminal tables: verdicts side by side, findings in words, measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    table = Table(
        title="Checks",
        title_justify="left",
        header_style="bold",
        pad_edge=False,
        collapse_padding=True,
        box=SIMPLE_HEAD,
    )
    table.add_column("check", no_wrap=True)
    for adapter in adapters:
        table.add_column(escape(adapter), justify="center", overflow="fold")
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
    """Each finding in words, with how to see it again; one that shows in several precisions is told once."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        settings = (f"{name}={value}" for name, value in sorted(finding.record.config.items()) if name != "precision")
        alike.setdefault((finding.record.adapter, str(finding.record.check), *settings), []).append(finding)
    for number, (finding, *others) in enumerate(alike.values(), 1):
        _print_finding(console, number, finding)
        for shown in (finding, *others):
            if shown is not finding:
                console.print(f"   [dim]also in {escape(column(shown.record))}: {escape(shown.record.reason)}[/dim]")
            if out and shown.record.counterexample:
                console.print(
                    f"   kvbench replay {escape(out)}/counterexamples/{escape(shown.record.counterexample)}",
                    soft_wrap=True,
                )


def _print_finding(console: Console, number: int, finding: Finding) -> None:
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


def print_measurements(console: Console, records: Iterable[Record]) -> None:
    """One table a suite and workload: adapters and what was varied down, metrics across."""
    measured = [record for record in records if record.metric]
    for suite, workload in dict.fromkeys((record.suite, record.workload) for record in measured):
        chosen = [record for record in measured if (record.suite, record.workload) == (suite, workload)]
        _print_measured(console, f"{suite}: {workload}" if workload else suite, chosen)


COUNTS = frozenset({"events", "tokens", "requests", "sequences", "blocks", "query-key pairs"})
"""Units of metrics that explain the others; on a narrow terminal their columns are left to --json and the page."""


Row = tuple[str, ...]
"""What a row of a table is called: the adapter, then the value of each parameter that was varied."""


def _print_measured(console: Console, title: str, records: Sequence[Record]) -> None:
    varied = _varied(records)
    rows: dict[Row, dict[str, Record]] = {}
    for record in records:
        rows.setdefault(_row(record, varied), {})[str(record.metric)] = record
    apart = _rows_apart(rows)
    shared = {row: cells for row, cells in rows.items() if row not in apart}
    table = _fitting_table(console, title, varied, shared)
    console.print()
    console.print(table)
    for row in apart:
        said = ", ".join(f"{name.replace('_', ' ')} {_in_full(record)}" for name, record in rows[row].items())
        console.print(f"[dim]{escape(f'{row[0]}: {said}')}[/dim]")
    if same := _constant(records, varied):
        console.print(f"[dim]{escape(same)}[/dim]")
    _print_reasons(console, records)


def _fitting_table(
    console: Console, title: str, varied: Sequence[str], rows: Mapping[Row, Mapping[str, Record]]
) -> Table:
    """Rows and their metrics. Where the terminal is narrow headings are broken, then counts are left out."""
    headings = _headings([record for cells in rows.values() for record in cells.values()], title)
    needed = {metric: text for metric, (text, is_count) in headings.items() if not is_count}
    everything = {metric: text for metric, (text, _) in headings.items()}
    names = ["adapter", *(name.replace("_", " ") for name in varied)]
    table = Table()
    for shown, gap in ((everything, " "), (everything, "\n"), (needed or everything, "\n")):
        lines = [[*row, *(_cell(cells[m]) if m in cells else "" for m in shown)] for row, cells in rows.items()]
        table = _right_aligned(title, [name.replace(" ", gap) for name in [*names, *shown.values()]], lines)
        if console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width:
            break
    return table


def _right_aligned(title: str, names: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """A table whose first column may be folded, the others not."""
    table = Table(title=escape(title), title_justify="left", header_style="bold", padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    table.add_column(names[0], overflow="fold")
    for name in names[1:]:
        table.add_column(escape(name), justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*map(escape, line))
    return table


def _row(record: Record, varied: Sequence[str]) -> Row:
    return (column(record), *(_told(record.params[name]) if name in record.params else "" for name in varied))


def _rows_apart(rows: Mapping[Row, Mapping[str, Record]]) -> list[Row]:
    """Rows that have no metric in common with any other, such as what the machine or the trace itself gives."""
    holders = Counter(metric for cells in rows.values() for metric in cells)
    apart = [row for row, cells in rows.items() if all(holders[metric] == 1 for metric in cells)]
    return apart if len(apart) < len(rows) else []


def _unit_in_heading(record: Record) -> bool:
    """Whether the unit is a word that need not stand in every cell."""
    return "/" in record.unit and format_value(1, record.unit).endswith(f" {record.unit}")


def _in_name(record: Record) -> bool:
    """Whether the metric's name says its unit."""
    return record.unit.replace("-", "_").replace(" ", "_") in str(record.metric)


def _cell(record: Record) -> str:
    """A value, without a unit that the heading or the metric's name says."""
    named = record.unit in COUNTS and (_in_name(record) or record.unit == "events")
    told = format_value(record.value, "" if named else record.unit)
    return told.removesuffix(f" {record.unit}") if _unit_in_heading(record) else told


def _in_full(record: Record) -> str:
    return _cell(record) + (f" {record.unit}" if _unit_in_heading(record) else "")


def _print_reasons(console: Console, records: Sequence[Record]) -> None:
    """What was not measured and why, and the verdicts of comparisons."""
    for record in records:
        if record.verdict == "skip" or (record.metric == "relative_speed" and record.reason):
            baseline = record.params.get("baseline")
            against = f" (beside {baseline})" if baseline else ""
            console.print(f"[dim]{escape(column(record))}: {escape(record.reason)}{escape(against)}[/dim]")


def _headings(records: Sequence[Record], title: str) -> dict[str, tuple[str, bool]]:
    """The heading of each metric, without the words that the title says, and whether it only counts something."""
    headings: dict[str, tuple[str, bool]] = {}
    for record in records:
        words = " ".join(word for word in str(record.metric).split("_") if word not in title)
        heading = f"{words}\n{record.unit}" if _unit_in_heading(record) else words
        headings.setdefault(str(record.metric), (heading, record.unit in COUNTS))
    return headings


def _told(value: object) -> str:
    """A parameter's value; large numbers with separators."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _varied(records: Sequence[Record]) -> list[str]:
    """What a table has rows for: parameters by which values of the same metric of the same adapter are told apart.

    One that only follows from those before it (the pool's tokens, where the block size changes them) is left out.
    """
    chosen: list[str] = []
    kinds = len({(column(record), record.metric) for record in records})
    for name in dict.fromkeys(name for record in records for name in record.params):
        keys = [*chosen, name]
        told = {(column(r), r.metric, *(_told(r.params.get(key)) for key in keys)) for r in records}
        if len(told) > kinds:
            chosen, kinds = keys, len(told)
    return chosen


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
