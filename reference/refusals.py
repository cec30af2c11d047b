"""Manager arguments that no cache could serve, refused before anything is touched."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from kvbench.errors import InvalidRequest
from kvbench.interface import PoolSpec


def check_tokens(tokens: Sequence[int]) -> list[int]:
    """`tokens` as a list that the caller cannot change any more. Raises `InvalidRequest`."""
    try:
        checked = list(map(operator.index, tokens))
    except TypeError as error:
        raise InvalidRequest(f"token ids must be a sequence of non-negative integers: {error}") from None
    if checked and min(checked) < 0:
        raise InvalidRequest(f"token id {min(checked)} is negative; token ids are non-negative integers")
    return checked


def check_length(seq: str, length: object, present: int) -> None:
    """Refuse a length that is not among the 0 to `present` tokens of `seq`. Raises `InvalidRequest`."""
    if not isinstance(length, int) or not 0 <= length <= present:
        raise InvalidRequest(f"length {length!r} is not an integer from 0 to the {present} tokens of {seq!r}")


def check_pool(spec: PoolSpec) -> None:
    """Refuse a pool that cannot exist. Raises `InvalidRequest`."""
    if spec.block_size < 1 or spec.num_blocks < 1 or spec.host_blocks < 0:
        raise InvalidRequest(
            f"a pool of {spec.num_blocks} blocks of {spec.block_size} tokens and {spec.host_blocks} host blocks; the "
            "first two must be at least 1, the third at least 0"
        )
    if not spec.groups:
        raise InvalidRequest("a pool without groups; give at least one GroupSpec")
    for group in spec.groups:
        if group.window is not None and group.window < 1:
            raise InvalidRequest(f"a window of {group.window} keys; a window holds at least the query's own key")
