"""`kvbench replay`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rich.markup import escape

from kvbench.cli.console import Output
from kvbench.counterexample import read_counterexample
from kvbench.suites.catalogue import CHECKS
from kvbench.verification import replay


def run(parsed: Namespace, output: Output) -> int:
    """Run a counterexample again; 1 if it reproduces."""
    counterexample = read_counterexample(Path(parsed.file))
    subject, violation = replay(counterexample, CHECKS, parsed.adapter)
    reproduces = violation is not None
    output.json(
        {
            "check": counterexample.check,
            "adapter": subject.adapter.name,
            "version": subject.adapter.version,
            "config": dict(subject.config),
            "reproduces": reproduces,
            "message": violation.message if violation else "",
            "story": list(violation.story) if violation else [],
        }
    )
    if not output.as_json:
        console = output.console
        console.print(f"{escape(counterexample.check)} on {escape(subject.label)} {escape(subject.adapter.version)}")
        if violation is None:
            console.print("[green]does not reproduce[/green]: the property holds for this case")
        else:
            for line in violation.story:
                console.print(f"  {escape(line)}")
            console.print(f"[red]reproduces[/red]: {escape(violation.message)}")
    return 1 if reproduces else 0
