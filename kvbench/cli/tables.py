"""Terminal tables: verdicts side by side, findings in words, measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
    table = Table(title="Checks", title_justify="left", header_style="bold", pad_edge=False)
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
        console.print(
            f"   [dim]failed {counterexample.reproduced} runs; the reference {escape(counterexample.on_reference)}[/dim]"
        )
        if out and record.counterexample:
            console.print(
                f"   kvbench replay {escape(out)}/counterexamples/{escape(record.counterexample)}", soft_wrap=True
            )


def print_measurements(console: Console, records: Iterable[Record]) -> None:
    """One table a suite and workload: metrics and parameters down, adapters across."""
    measured = [record for record in records if record.metric]
    for suite, workload in dict.fromkeys((record.suite, record.workload) for record in measured):
        chosen = [record for record in measured if (record.suite, record.workload) == (suite, workload)]
        _print_measured(console, f"{suite}: {workload}" if workload else suite, chosen)


def _print_measured(console: Console, title: str, records: Sequence[Record]) -> None:
    columns = list(dict.fromkeys(column(record) for record in records))
    table = Table(title=escape(title), title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("metric", no_wrap=True)
    table.add_column("for")
    for name in columns:
        table.add_column(escape(name), justify="right")
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        params = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in record.params.items() if key != "seed")
        rows.setdefault((str(record.metric), params), {})[column(record)] = format_value(record.value, record.unit)
    for (metric, params), cells in rows.items():
        table.add_row(escape(metric), escape(params), *(escape(cells.get(name, "")) for name in columns))
    console.print()
    console.print(table)


def print_closing(console: Console, running: Session) -> None:
    """The last lines: how many findings, and where the page is."""
    findings = len(running.findings)
    if any(record.check for record in running.records):
        console.print()
        console.print(f"[bold red]{findings} findings[/bold red]" if findings else "[green]no findings[/green]")
    if running.page is not None:
        console.print(f"page: {escape(str(running.page))}", soft_wrap=True)
