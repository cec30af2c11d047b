"""`kvbench report` and `kvbench leaderboard`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rich.markup import escape

from kvbench.cli.console import Output
from kvbench.errors import UsageError


def run(parsed: Namespace, output: Output) -> int:
    """Build pages from saved result folders."""
    from kvbench.reports.leaderboard import write_leaderboard
    from kvbench.reports.site import write_site

    folders = [Path(folder) for folder in parsed.folders]
    write = write_leaderboard if parsed.command == "leaderboard" else write_site
    try:
        page = write(folders, Path(parsed.out))
    except OSError as error:
        raise UsageError(f"cannot write pages to {parsed.out}: {error.strerror or error}") from None
    output.json({"page": str(page), "folders": parsed.folders})
    if not output.as_json:
        output.console.print(f"page: {escape(str(page))}", soft_wrap=True)
    return 0
