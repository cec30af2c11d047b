"""Timing several contestants side by side: interleaved rounds in random order, so that drift hits all alike."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of one contestant's turn would be charged to it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def race(
    contestants: Mapping[str, Callable[[int], object]],
    *,
    rounds: int,
    seed: int,
    seconds: float,
    warm_up: int = 1,
    minimum: int = 5,
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round, {name: [round]}; all lists have the same length, so rounds pair up.

    Each contestant is called with the round's number (by which it can rotate its buffers) once a round, in an order
    drawn anew for each round. After `seconds` no further round is begun, but there are at least `minimum`.
    """
    names = list(contestants)
    times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(seed)
    for turn in range(warm_up):
        for name in names:
            contestants[name](turn)
    started = time.perf_counter()
    with _no_garbage_collection():
        for turn in range(rounds):
            if turn >= minimum and time.perf_counter() - started > seconds:
                break
            for name in order.sample(names, len(names)):
                begin = time.perf_counter()
                contestants[name](turn)
                times[name].append(time.perf_counter() - begin)
    return times
