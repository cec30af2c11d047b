"""`kvbench verify`."""

from __future__ import annotations

from argparse import Namespace

from kvbench.budget import parse_budget
from kvbench.cli.console import Output
from kvbench.cli.inputs import choose_checks, parse_config
from kvbench.cli.session import session
from kvbench.cli.tables import print_closing, print_findings, print_verdicts
from kvbench.suites.catalogue import CHECKS
from kvbench.verification import open_entries, verify


def run(parsed: Namespace, output: Output) -> int:
    """Check adapters; 1 if anything was found."""
    budget = parse_budget(parsed.budget)
    checks = choose_checks(CHECKS, parsed.suite)
    entries = open_entries(parsed.adapters, parse_config(parsed.config))
    with session(parsed) as running, output.progress() as announce:
        running.collect(verify(entries, checks, budget, parsed.seed, running.folder, announce))
    output.json(running.records)
    if not output.as_json:
        print_verdicts(output.console, running.records)
        print_findings(output.console, running.findings, parsed.out)
        print_closing(output.console, running)
    return running.exit_code
