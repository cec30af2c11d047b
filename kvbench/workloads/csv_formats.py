"""Traces as comma-separated tables: Azure, BurstGPT, and kvbench's own plain one.

Columns are found by the names in the first line; their order is free and further columns are passed over.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvbench.errors import InputError
from kvbench.workloads.fields import Place, seconds_of, seconds_of_date, shown, tokens_of
from kvbench.workloads.trace import Request

Row = Mapping[str, str]


@dataclass(frozen=True)
class TableFormat:
    """One kind of table.

    columns: that must be there, in lower case. read: a request from a row, or None for a row that is no served request.
    """

    name: str
    source: str
    columns: tuple[str, ...]
    read: Callable[[Row, Place], Request | None]
    left_out: str = ""


def _azure(row: Row, place: Place) -> Request:
    return Request(
        seconds_of_date(row["timestamp"], "TIMESTAMP", place),
        tokens_of(row["contexttokens"], "ContextTokens", 1, place),
        tokens_of(row["generatedtokens"], "GeneratedTokens", 0, place),
    )


def _burstgpt(row: Row, place: Place) -> Request | None:
    arrival = seconds_of(row["timestamp"], "Timestamp", place)
    prompt = tokens_of(row["request tokens"], "Request tokens", 0, place)
    output = tokens_of(row["response tokens"], "Response tokens", 0, place)
    if prompt == 0 or output == 0:
        return None
    return Request(arrival, prompt, output, session=row.get("session id") or None)


def _plain(row: Row, place: Place) -> Request:
    return Request(
        seconds_of(row["arrival"], "arrival", place),
        tokens_of(row["prompt_tokens"], "prompt_tokens", 1, place),
        tokens_of(row["output_tokens"], "output_tokens", 0, place),
    )


TABLE_FORMATS = (
    TableFormat(
        "Azure",
        "Azure LLM inference trace (Patel et al., Splitwise, ISCA 2024; CC-BY 4.0)",
        ("timestamp", "contexttokens", "generatedtokens"),
        _azure,
    ),
    TableFormat(
        "BurstGPT",
        "BurstGPT (Wang et al., 2024; CC-BY 4.0)",
        ("timestamp", "request tokens", "response tokens"),
        _burstgpt,
        left_out="failed requests (0 request or response tokens)",
    ),
    TableFormat("plain", "CSV file", ("arrival", "prompt_tokens", "output_tokens"), _plain),
)


def table_format(header_line: str) -> TableFormat | None:
    """The format whose columns all stand in the first line of a file, or None."""
    try:
        names = set(_names(next(csv.reader([header_line]))))
    except (csv.Error, StopIteration):
        return None
    return next((known for known in TABLE_FORMATS if names.issuperset(known.columns)), None)


def read_table(table: TableFormat, lines: Iterable[str], path: Path) -> Iterator[Request | None]:
    """The requests of a table, None for each row that is left out. Raises `InputError` naming the line."""
    rows = csv.reader(lines, strict=True)
    try:
        names = next(row for row in (_names(fields) for fields in rows) if any(row))
        for fields in rows:
            if not fields:
                continue
            place = Place(path, rows.line_num)
            if len(fields) != len(names):
                problem = f"{len(fields)} fields {shown(','.join(fields))}"
                raise place.error(f"{problem}; expected {len(names)}, as in the first line")
            yield table.read(dict(zip(names, fields, strict=True)), place)
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: {error}; expected comma-separated values") from None


def _names(fields: list[str]) -> list[str]:
    return [field.strip().lower() for field in fields]
