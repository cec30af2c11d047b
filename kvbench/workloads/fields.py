"""Reading single values of a trace file: finite, in range, or an error that says what was expected."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvbench.errors import InputError

MAX_TOKENS = 100_000_000
"""Longest prompt or output that is taken for real; a larger number is a broken file."""

MAX_SECONDS = 1e11
"""Largest timestamp that is taken for real: seconds since 1970 with room to spare."""

MAX_HASH_ID = 2**63 - 1
"""Content identities are 63-bit, which leaves the other half of 64 bits for content that is shared with nobody."""


class Place:
    """A line of a file, for error messages."""

    def __init__(self, path: Path, line: int) -> None:
        self.path = path
        self.line = line

    def error(self, problem: str) -> InputError:
        """An `InputError` that names this line."""
        return InputError(f"{self.path}, line {self.line}: {problem}")


def shown(value: object) -> str:
    """`value` as it stands in an error message: on one line, and short."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def tokens_of(value: Any, name: str, minimum: int, place: Place) -> int:
    """A token count: an integer from `minimum` to `MAX_TOKENS`, as a number or as decimal text."""
    number = _number(value)
    if number is None or not number.is_integer() or not minimum <= number <= MAX_TOKENS:
        raise place.error(f"{name} is {shown(value)}; expected a whole number of tokens, {minimum} to {MAX_TOKENS}")
    return int(number)


def seconds_of(value: Any, name: str, place: Place, per_second: float = 1.0) -> float:
    """A timestamp in seconds from a number of 1/`per_second` seconds."""
    number = _number(value)
    if number is None or not 0 <= number / per_second <= MAX_SECONDS:
        raise place.error(f"{name} is {shown(value)}; expected a number of at least 0")
    return number / per_second


def seconds_of_date(value: str, name: str, place: Place) -> float:
    """A timestamp in seconds from a date and time such as 2023-11-16 18:15:46.680590 (UTC where no zone is given)."""
    try:
        date = datetime.fromisoformat(value.strip())
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise place.error(f"{name} is {shown(value)}; expected a date and time like 2023-11-16 18:15:46.68") from None


def hash_ids_of(value: Any, prompt_tokens: int, hash_block: int, place: Place) -> tuple[int, ...]:
    """Content identity: a list of at most one 63-bit id for every `hash_block` tokens of the prompt, begun or full."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_HASH_ID for item in value):
        raise place.error(f"hash_ids is {shown(value)}; expected a list of whole numbers, 0 to 2**63 - 1")
    blocks = -(-prompt_tokens // hash_block)
    if len(value) > blocks:
        raise place.error(
            f"{len(value)} hash_ids for input_length {prompt_tokens}; expected at most {blocks}, "
            f"one for every {hash_block} tokens"
        )
    return tuple(value)


def _number(value: Any) -> float | None:
    """`value` as a finite number, or None when it is none. Booleans are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
