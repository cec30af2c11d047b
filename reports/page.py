"""The report: one self-contained page from one or several result folders."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvbench.codec import encode
from kvbench.errors import UsageError
from kvbench.reports import figures
from kvbench.reports.frames import Frames, load
from kvbench.reports.summary import commands, day, environment_rows, glance
from kvbench.reports.verdicts import counterexample_path, findings, headline, matrix, skipped, standings


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write `out`/index.html, and beside it the counterexamples that it names; return the page's path.

    Raises `InputError` for a folder that cannot be read, `UsageError` for one that cannot be written.
    """
    frames = load(folders)
    page = write_page(out / "index.html", "report.html", report_context(frames))
    _write_counterexamples(frames, out)
    return page


def report_context(frames: Frames) -> dict[str, Any]:
    """What the template of a report is filled with."""
    found = standings(frames)
    problems = findings(frames)
    names = [standing.who for standing in found if standing.asked or standing.skipped]
    others = figures.other_rows(frames)
    return {
        "headline": headline(found),
        "checks": frames.checks[["suite", "check"]].drop_duplicates().shape[0],
        "machines": list(dict.fromkeys(source.machine for source in frames.sources)),
        "days": sorted({day(source.environment) for source in frames.sources} - {""}),
        "glance": glance(frames, found),
        "adapters": names,
        "matrix": matrix(frames, names, problems),
        "skipped": skipped(frames),
        "findings": problems,
        "waste": figures.waste_panels(frames),
        "waste_table": figures.measurement_table(
            frames, figures.measured(frames, *(metric for metric, _, _ in figures.SHARES)), "Shares of memory"
        ),
        "sharing": figures.sharing_panels(frames),
        "saved_table": figures.measurement_table(
            frames, figures.measured(frames, *figures.SHARING, *figures.SAVED), "Hits and memory saved"
        ),
        "speed": figures.speed_panels(frames),
        "relative": figures.relative_panels(frames),
        "untimed": figures.untimed(frames),
        "warnings": figures.warnings(frames),
        "speed_table": figures.measurement_table(
            frames,
            [*figures.speed_rows(frames), *figures.measured(frames, figures.RELATIVE, figures.FLOOR)],
            "Everything that was timed",
        ),
        "growth": figures.growth_panels(frames),
        "growth_table": figures.measurement_table(
            frames, [row for row in figures.measured(frames) if row.suite == "growth"], "Bytes, times and operations"
        ),
        "others": figures.measurement_table(frames, others, "Other measurements") if others else None,
        "sources": frames.sources,
        "environment": environment_rows(frames),
        "commands": commands(frames),
    }


def write_page(path: Path, template: str, context: Mapping[str, Any]) -> Path:
    """Render a template of this package to `path`, whole or not at all. Raises `UsageError`."""
    environment = Environment(
        loader=PackageLoader("kvbench.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = _own_file(environment, "style.css")
    script = _own_file(environment, "page.js")
    html = environment.get_template(template).render(
        **context, style=style, script=script, policy=_policy(str(style), str(script))
    )
    unfinished = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate, which JSON can hold, has no place in UTF-8.
        unfinished.write_bytes(html.encode("utf-8", "replace"))
        unfinished.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write the page {path}: {error.strerror or error}") from None
    return path


def _own_file(environment: Environment, name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, name)
    return Markup(source)


def _policy(style: str, script: str) -> str:
    """The page may use this style and this script, and fetch nothing."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _write_counterexamples(frames: Frames, out: Path) -> None:
    """Put those that are read beside a page that lies elsewhere, so that its links and commands hold."""
    for folder, source in enumerate(frames.sources):
        for name, counterexample in source.counterexamples.items():
            target = out / counterexample_path(frames, folder, name)
            if target.exists() and target.samefile(source.path / "counterexamples" / name):
                continue
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(
                    json.dumps(encode(counterexample), indent=1, allow_nan=False) + "\n", encoding="utf-8"
                )
            except OSError as error:
                raise UsageError(f"cannot write the counterexample {target}: {error.strerror or error}") from None
