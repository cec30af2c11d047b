"""`kvbench run`."""

from __future__ import annotations

from argparse import Namespace

from kvbench.budget import parse_budget
from kvbench.cli.console import Output
from kvbench.cli.inputs import parse_config
from kvbench.cli.session import session
from kvbench.cli.tables import print_closing, print_measurements
from kvbench.errors import UsageError
from kvbench.measurement import Request
from kvbench.names import closest
from kvbench.suites.catalogue import MEASUREMENTS
from kvbench.verification import open_entries


def run(parsed: Namespace, output: Output) -> int:
    """Run one measuring suite."""
    by_name = {measurement.name: measurement for measurement in MEASUREMENTS}
    if parsed.suite not in by_name:
        hint = closest(parsed.suite, by_name)
        raise UsageError(f"unknown measuring suite {parsed.suite!r}{hint}; use one of {', '.join(by_name)}")
    request = Request(
        parse_budget(parsed.budget), parsed.seed, parsed.trace, parsed.model, whole_trace=parsed.trace is not None
    )
    entries = open_entries(parsed.adapters, parse_config(parsed.config))
    with session(parsed) as running, output.progress() as announce:
        running.measure(parsed.suite, by_name[parsed.suite].measure(entries, request, announce))
    output.json(running.records)
    if not output.as_json:
        print_measurements(output.console, running.records)
        print_closing(output.console, running)
    return 0
