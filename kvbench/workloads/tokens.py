"""Token ids for traces, which publish only lengths and content identities.

Ids are spelled in 16-bit digits, so they lie below 65,536 as a vocabulary's do, and blocks of at least 4 tokens are
equal exactly if their identities are: the first four digits of a block are its mixed 64-bit identity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.workloads.trace import Request

VOCABULARY = 1 << 16
MIN_BLOCK = 4
"""Smallest block whose tokens spell a 64-bit identity."""

_UNIQUE = 1 << 63  # identities of content that is shared with nobody lie in the upper half
_UNIQUE_BLOCK = 64


def block_tokens(identities: NDArray[np.uint64], block: int) -> NDArray[np.int64]:
    """Token ids [num_blocks, block] of the blocks with these 64-bit identities, always the same for the same identity.

    Raises `ValueError` for a block of fewer than 4 tokens.
    """
    if block < MIN_BLOCK:
        raise ValueError(f"a block of {block} tokens cannot spell a 64-bit identity; the smallest is {MIN_BLOCK}")
    words = -(-block // MIN_BLOCK)
    mixed = _mix(identities)
    offsets = np.arange(words, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    spelled = mixed[:, None] + offsets[None, :]
    spelled[:, 1:] = _mix(spelled[:, 1:])
    digits = np.ascontiguousarray(spelled).view(np.uint16)
    return digits[:, :block].astype(np.int64)


def prompt_tokens(request: Request, index: int, block: int, length: int) -> NDArray[np.int64]:
    """Token ids [length] of a prompt, `block` tokens for each of its hash ids.

    What the ids do not cover is unique to request `index`. `block` and `length` may be scaled down together from the
    trace's own; then a trace block is represented by fewer tokens.
    """
    ids = np.array(request.hash_ids or (), dtype=np.uint64)
    known = block_tokens(ids, block).reshape(-1)[:length] if len(ids) else np.empty(0, dtype=np.int64)
    return np.concatenate([known, unique_tokens(index, len(known), length - len(known))])


def unique_tokens(index: int, start: int, count: int) -> NDArray[np.int64]:
    """Token ids [count] of positions start.. of request `index`, found in no other request: what it decodes."""
    first, last = start // _UNIQUE_BLOCK, -(-(start + count) // _UNIQUE_BLOCK)
    base = np.uint64(_UNIQUE) + np.uint64(index << 32)
    spelled = block_tokens(base + np.arange(first, last, dtype=np.uint64), _UNIQUE_BLOCK).reshape(-1)
    offset = start - first * _UNIQUE_BLOCK
    return spelled[offset : offset + count]


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit integers that scatters neighbours: the finaliser of SplitMix64 (Steele et al., 2014)."""
    mixed = values.copy()
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
