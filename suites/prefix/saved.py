"""What sharing saves: blocks of requests with a common prefix, together and each alone."""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.interface import PoolSpec
from kvbench.subject import Subject
from kvbench.suites.lifecycle.operations import Begin
from kvbench.suites.prefix.hits import do, open_world, submit
from kvbench.suites.rows import Row


def memory_saved(subject: Subject, requests: int, shared: int, own: int, block_size: int) -> Iterator[Row]:
    """Blocks that `requests` requests take, each of `shared` common tokens and `own` tokens of its own.

    The first is computed before the others come. Rows: `blocks_shared` (all of them running side by side),
    `blocks_alone` (as many times what one takes), `memory_saved` (the share of blocks that is saved, 0..1), each with
    the parameters. Raises `NotApplicable` where the manager does not offer the block size or refuses a request.
    """
    blocks = requests * ((shared + own) // block_size + 2) + 4
    pool = PoolSpec(blocks, block_size, max_sequences=requests, max_length=max(blocks * block_size, shared + own))
    world = open_world(subject, pool)
    free = world.view.free
    prefix = (1,) * shared
    submit(world, "r0", prefix + (2,) * own)
    alone = (free - world.view.free) * requests
    for number in range(1, requests):
        do(world, Begin(f"r{number}", prefix + (2 + number,) * own))
    taken = free - world.view.free
    params = {"requests": requests, "shared": shared, "own": own, "block_size": block_size}
    yield Row("blocks_alone", alone, "blocks", params)
    yield Row("blocks_shared", taken, "blocks", params)
    yield Row("memory_saved", 1 - taken / alone if alone else 0.0, "ratio", params)


__all__ = ["memory_saved"]
