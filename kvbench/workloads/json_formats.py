"""Traces as JSON lines with content identity: Mooncake and Qwen-Bailian."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.workloads.fields import Place, hash_ids_of, seconds_of, shown, tokens_of
from kvbench.workloads.trace import Request

Entry = dict[str, Any]


@dataclass(frozen=True)
class LinesFormat:
    """One kind of JSON lines. keys: that every entry has. hash_block: tokens that one hash id stands for."""

    name: str
    source: str
    keys: tuple[str, ...]
    hash_block: int
    reader: Callable[[], Callable[[Entry, Place], Request]]


def _mooncake() -> Callable[[Entry, Place], Request]:
    def read(entry: Entry, place: Place) -> Request:
        prompt = tokens_of(entry["input_length"], "input_length", 1, place)
        return Request(
            seconds_of(entry["timestamp"], "timestamp", place, per_second=1000.0),
            prompt,
            tokens_of(entry["output_length"], "output_length", 0, place),
            hash_ids_of(entry["hash_ids"], prompt, 512, place),
        )

    return read


def _bailian() -> Callable[[Entry, Place], Request]:
    sessions: dict[str, str] = {}  # the first chat of each chat's conversation

    def read(entry: Entry, place: Place) -> Request:
        prompt = tokens_of(entry["input_length"], "input_length", 1, place)
        chat, parent = str(entry["chat_id"]), str(entry["parent_chat_id"])
        sessions[chat] = sessions.get(parent, chat if parent == "-1" else parent)
        return Request(
            seconds_of(entry["timestamp"], "timestamp", place),
            prompt,
            tokens_of(entry["output_length"], "output_length", 0, place),
            hash_ids_of(entry["hash_ids"], prompt, 16, place),
            sessions[chat],
        )

    return read


LINES_FORMATS = (
    LinesFormat(
        "Qwen-Bailian",
        "Qwen-Bailian usage trace (Wang et al., USENIX ATC 2025; Apache-2.0)",
        ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"),
        16,
        _bailian,
    ),
    LinesFormat(
        "Mooncake",
        "Mooncake trace (Qin et al., FAST 2025; Apache-2.0)",
        ("timestamp", "input_length", "output_length", "hash_ids"),
        512,
        _mooncake,
    ),
)


def lines_format(first_line: str) -> LinesFormat | None:
    """The format whose keys are all in the first line of a file, or None."""
    try:
        entry = json.loads(first_line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    return next((known for known in LINES_FORMATS if set(known.keys) <= set(entry)), None)


def read_lines(known: LinesFormat, lines: Iterable[str], path: Path) -> Iterator[Request]:
    """The requests of a file of JSON lines; empty lines are passed over. Raises `InputError` naming the line."""
    read = known.reader()
    expected = f"expected a JSON object with {', '.join(known.keys)}"
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = Place(path, number)
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise place.error(f"{shown(line.strip())} is not valid JSON; {expected}") from None
        if not isinstance(entry, dict):
            raise place.error(f"{shown(entry)} is not an object; {expected}")
        missing = [key for key in known.keys if key not in entry]
        if missing:
            raise place.error(f"no {', '.join(missing)}; {expected}")
        yield read(entry, place)
