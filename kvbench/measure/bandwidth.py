"""The memory bandwidth that the same device reaches with the same threads: the floor that times are set against."""

from __future__ import annotations

from collections.abc import Callable

import torch


def read_bandwidth_probe(size: int = 256 * 2**20) -> tuple[int, Callable[[int], object]]:
    """(bytes a call reads, the call): a plain sum over a float32 buffer larger than any cache, as a contestant."""
    buffer = torch.ones(size // 4, dtype=torch.float32)
    return buffer.numel() * 4, lambda _: buffer.sum()
