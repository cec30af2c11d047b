"""`kvbench list`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from kvbench.cli.console import Output


def run(parsed: Namespace, output: Output) -> int:
    """List what there is."""
    rows = list(LISTS[parsed.what]())
    output.json(rows)
    if output.as_json:
        return 0
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name in rows[0] if rows else []:
        table.add_column(name, no_wrap=name == "name")
    for row in rows:
        table.add_row(*(escape("" if value is None else str(value)) for value in row.values()))
    output.console.print(table)
    return 0


def _adapters() -> Iterator[dict[str, Any]]:
    from kvbench.registry import list_adapters

    for listed in list_adapters():
        row = asdict(listed)
        missing = row.pop("missing")
        yield {**row, "ready": "yes" if missing is None else missing}


def _suites() -> Iterator[dict[str, Any]]:
    from kvbench.suites.catalogue import CHECKS, MEASUREMENTS

    for check in CHECKS:
        yield {"name": check.name, "kind": f"check of the {check.half}", "about": check.about}
    for measurement in MEASUREMENTS:
        yield {"name": measurement.name, "kind": "measurement", "about": measurement.about}


def _models() -> Iterator[dict[str, Any]]:
    from kvbench.models import list_models

    yield from list_models()


def _traces() -> Iterator[dict[str, Any]]:
    from kvbench.workloads import list_traces

    yield from list_traces()


def _faults() -> Iterator[dict[str, Any]]:
    from kvbench.faults.catalogue import classes, controls, faults

    names = {known.id: known.name for known in classes()}
    for fault in faults():
        yield {"name": fault.id, "class": names[fault.class_id], "about": fault.about, "needs": ", ".join(fault.needs)}
    for control in controls():
        yield {"name": control.id, "class": "correct", "about": control.about, "needs": ""}


LISTS = {"adapters": _adapters, "suites": _suites, "faults": _faults, "models": _models, "traces": _traces}
