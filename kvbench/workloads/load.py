"""Reading a trace file of any public format. The format is told from the content, never from the file's name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TextIO

from kvbench.errors import InputError
from kvbench.workloads import sharegpt
from kvbench.workloads.csv_formats import TABLE_FORMATS, read_table, table_format
from kvbench.workloads.fields import shown
from kvbench.workloads.json_formats import LINES_FORMATS, lines_format, read_lines
from kvbench.workloads.trace import Request, Trace, in_arrival_order

HEAD_BYTES = 1 << 16


def load_trace(path: str | Path, limit: int | None = None) -> Trace:
    """The trace in a file, or its first `limit` requests.

    Formats: Azure CSV, BurstGPT CSV, Mooncake JSON lines, Qwen-Bailian JSON lines, ShareGPT JSON, and plain CSV of
    arrival,prompt_tokens,output_tokens. Requests out of order are sorted, and the trace's notes say so.

    Raises `InputError` naming the file, the line, what is wrong there and what is expected.
    """
    path = Path(path)
    try:
        _check_readable(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(file, path, limit)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a trace: byte {error.start} is not UTF-8 text; {_known_formats()}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # a path that no file system accepts
        raise InputError(f"cannot read {shown(str(path))}: {error}") from None


def _check_readable(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder; a trace is a file")
    if not path.exists():
        raise InputError(f"{path} does not exist; give a trace file or one of the names in `kvbench list traces`")
    if not path.is_file():
        raise InputError(f"{path} is not a regular file; copy the trace into one")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head.strip():
        raise InputError(f"{path} is empty; {_known_formats()}")
    if b"\0" in head:
        raise InputError(f"{path} is a binary file; {_known_formats()}")


def _read(file: TextIO, path: Path, limit: int | None) -> Trace:
    first_line = next((line for line in file if line.strip()), "")
    file.seek(0)
    if (table := table_format(first_line)) is not None:
        kept, left_out = _kept(read_table(table, file, path), limit)
        return _trace(path, table.source, kept, None, [f"{left_out} {table.left_out} left out"] if left_out else [])
    if (lines := lines_format(first_line)) is not None:
        requests = list(islice(read_lines(lines, file, path), limit))
        return _trace(path, lines.source, requests, lines.hash_block, [])
    if _may_be_conversations(first_line):
        requests = list(islice(sharegpt.read_conversations(file.read(), path), limit))
        return _trace(path, sharegpt.SOURCE, requests, sharegpt.HASH_BLOCK, [sharegpt.COUNTING_RULE])
    raise InputError(f"{path}, line 1: {shown(first_line.strip())} begins no known trace format; {_known_formats()}")


def _kept(rows: Iterable[Request | None], limit: int | None) -> tuple[list[Request], int]:
    """The first `limit` requests, and how many rows before them were left out."""
    kept: list[Request] = []
    left_out = 0
    for row in rows if limit is None or limit > 0 else ():
        if row is None:
            left_out += 1
            continue
        kept.append(row)
        if len(kept) == limit:
            break
    return kept, left_out


def _trace(path: Path, source: str, requests: list[Request], hash_block: int | None, notes: list[str]) -> Trace:
    if not requests:
        raise InputError(f"{path} holds no requests; expected at least one after the first line")
    ordered, moved = in_arrival_order(requests)
    if moved:
        notes.append("requests were out of order and have been sorted by arrival")
    return Trace(path.name, f"{path.name}: {source}", ordered, hash_block, tuple(notes))


def _may_be_conversations(first_line: str) -> bool:
    """An array, a conversation, or an object that is not complete on its first line."""
    text = first_line.lstrip()
    if text.startswith("["):
        return True
    if not text.startswith("{"):
        return False
    try:
        return sharegpt.looks_like_conversation(json.loads(text))
    except (ValueError, RecursionError):
        return True


def _known_formats() -> str:
    tables = ", ".join(f"{known.name} CSV" for known in TABLE_FORMATS if known.name != "plain")
    lines = ", ".join(f"{known.name} JSON lines" for known in LINES_FORMATS)
    return f"known: {tables}, {lines}, ShareGPT JSON, CSV with the first line arrival,prompt_tokens,output_tokens"
