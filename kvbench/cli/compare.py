"""`kvbench compare`."""

from __future__ import annotations

from argparse import Namespace

from kvbench.budget import parse_budget
from kvbench.cli.console import Output
from kvbench.cli.inputs import parse_config
from kvbench.cli.session import session
from kvbench.cli.tables import print_closing, print_findings, print_measurements, print_verdicts
from kvbench.measurement import Request
from kvbench.suites.catalogue import CHECKS, MEASUREMENTS
from kvbench.verification import open_entries, verify


def run(parsed: Namespace, output: Output) -> int:
    """Run all suites on all adapters; 1 if anything was found."""
    request = Request(parse_budget(parsed.budget), parsed.seed, parsed.trace, parsed.model)
    entries = open_entries(parsed.adapters, parse_config(parsed.config))
    with session(parsed) as running, output.progress() as announce:
        running.collect(verify(entries, CHECKS, request.budget, request.seed, running.folder, announce))
        for measurement in MEASUREMENTS:
            running.measure(measurement.name, measurement.measure(entries, request, announce))
    output.json(running.records)
    if not output.as_json:
        print_verdicts(output.console, running.records)
        print_findings(output.console, running.findings, parsed.out)
        print_measurements(output.console, running.records)
        print_closing(output.console, running)
    return running.exit_code
