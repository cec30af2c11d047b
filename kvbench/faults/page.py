"""The catalogue as a page for docs/: classes, the public reports that they stand for, and which check answers.

kvbench faults --budget quick --json > docs/faults.json
python -m kvbench.faults.page docs/faults.json > docs/faults.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvbench.faults.catalogue import classes, controls, faults

HEAD = """\
# The catalogue of faults

Ways in which released caches have failed, each class with the public reports that it stands for. Every variant is a
small fault over a correct adapter, alive by a scripted trigger, and can be looked at: `kvbench verify fault:A1a`. The
checks know nothing of it: `kvbench faults` shows each one to all checks and tells which one found it first.

This page is made from the code and from the run in `faults.json` beside it (`kvbench/faults/page.py` says how).
"""


def render(run: Mapping[str, Any]) -> str:
    """The page, in Markdown. run: what `kvbench faults --json` printed."""
    found = {entry["id"]: entry for entry in run["faults"]}
    summary = run["summary"]
    lines = [HEAD, _told(summary), ""]
    for known in classes():
        lines += [
            f"## {known.id} {known.name}",
            "",
            f"{known.component}, difficulty {known.difficulty} of 5: {known.about}.",
            "",
        ]
        lines += ["| variant | what it does wrong | found by | operations |", "|---|---|---|---|"]
        for fault in faults():
            if fault.class_id == known.id:
                shown = found.get(fault.id, {})
                operations = shown.get("operations") or ""
                lines.append(f"| {fault.id} | {fault.about} | {shown.get('check') or 'nothing'} | {operations} |")
        lines += ["", f"Stands for {', '.join(map(_link, known.reports))}.", ""]
    lines += [
        "## Correct, but unusual",
        "",
        "None of these may be called a fault.",
        "",
        "| name | habit |",
        "|---|---|",
    ]
    lines += [f"| {control.id} | {control.about} |" for control in controls()]
    return "\n".join(lines) + "\n"


def _told(summary: Mapping[str, Any]) -> str:
    return (
        f"In that run {summary['killed']} of {summary['total']} faults were found, in {summary['median_seconds']:.1f} "
        f"s in the median and {summary['worst_seconds']:.0f} s at worst; the shrunk scripts have "
        f"{summary['median_operations']:g} operations on {summary['median_sequences']:g} sequences in the median; "
        f"{len(summary['false_alarms'])} correct adapters were accused."
    )


def _link(report: str) -> str:
    """A report or a commit, "owner/repository#12" or "owner/repository@0123abc", as a link."""
    if "#" in report:
        repository, number = report.split("#")
        return f"[{report}](https://github.com/{repository}/issues/{number})"
    repository, commit = report.split("@")
    return f"[{report}](https://github.com/{repository}/commit/{commit})"


if __name__ == "__main__":
    sys.stdout.write(render(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
