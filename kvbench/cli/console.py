"""What the user sees: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvbench.codec import encode

if TYPE_CHECKING:
    from rich.console import Console

    from kvbench.measurement import Announce


COLUMNS_OF_A_FILE = 120
"""Width of what is printed where there is no terminal to fit."""

SECONDS_BETWEEN_LINES = 10.0
"""Of progress, where stderr is not a terminal."""


class Output:
    """Where a command's output goes. With `as_json` stdout holds JSON alone; `quiet` drops progress."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._next_line = 0.0

    @property
    def console(self) -> Console:
        """Console for people: stdout, or stderr when stdout is for JSON. Honours NO_COLOR and COLUMNS."""
        from rich.console import Console

        console = Console(stderr=self.as_json, quiet=self.as_json and self.quiet, highlight=False, soft_wrap=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = COLUMNS_OF_A_FILE
        return console

    def json(self, data: Any) -> None:
        """Print `data` as JSON if that was asked for."""
        if self.as_json:
            json.dump(encode(data), sys.stdout, indent=1, allow_nan=False)
            sys.stdout.write("\n")

    def error(self, message: str) -> None:
        """Print one line on stderr."""
        sys.stderr.write(f"kvbench: {' '.join(message.split())}\n")

    @contextlib.contextmanager
    def progress(self) -> Iterator[Announce]:
        """A progress line on stderr while long work goes on; nothing where stderr is not a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if self.quiet or not console.is_terminal:
            yield self._announce_plainly
            return
        columns = (
            SpinnerColumn(),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("starting", total=None)

            def announce(text: str, done: int, total: int) -> None:
                progress.update(task, description=_plain(text), completed=done, total=total)

            yield announce

    def _announce_plainly(self, text: str, done: int, total: int) -> None:
        """A line now and then, for logs."""
        if not self.quiet and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            sys.stderr.write(f"[{done}/{total}] {text}\n")
            sys.stderr.flush()


def _plain(text: str) -> str:
    """`text` without anything that rich would take for markup."""
    from rich.markup import escape

    return escape(text)
