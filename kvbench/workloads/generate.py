"""Traces drawn from published statistics, so that no file is needed. The same seed always gives the same trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.workloads.statistics import LEVELS, Arrivals, Lengths, LogNormal, Sharing, Workload
from kvbench.workloads.trace import Request, Trace

CANDIDATES = 128
"""Earlier requests, around the time that the pause points at, among which a follow-up finds the one it continues."""

TOO_SHORT = 1 << 40
"""More blocks than any request has: a request that is too short comes after all that are long enough."""


def generate(workload: Workload, seed: int = 0) -> Trace:
    """A trace of `workload.count` requests with the workload's lengths, arrivals and prefix sharing."""
    rng = np.random.default_rng([seed, *workload.name.encode()])
    arrivals = _arrivals(workload.arrivals, workload.count, rng)
    prompts = _lengths(workload.prompt, workload.count, rng)
    outputs = _lengths(workload.output, workload.count, rng)
    if workload.sharing is None:
        requests = tuple(map(Request, arrivals.tolist(), prompts.tolist(), outputs.tolist()))
    else:
        requests = _sharing_prefixes(workload.sharing, arrivals, prompts, outputs, rng)
    source = f"generated, seed {seed}, after {workload.source}"
    return Trace(workload.name, source, requests, workload.sharing.hash_block if workload.sharing else None)


def _quantile_draws(values: tuple[float, ...], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draws [count] from the distribution with these values at `LEVELS`."""
    return np.exp(np.interp(rng.random(count), LEVELS, np.log(values)))


def _lengths(lengths: Lengths, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if isinstance(lengths, LogNormal):
        draws = rng.lognormal(lengths.mu, lengths.sigma, count)
    else:
        draws = _quantile_draws(lengths.values, count, rng)
    return np.maximum(np.rint(draws), 1).astype(np.int64)


def _arrivals(arrivals: Arrivals, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrival times [count], the first at 0."""
    shape = arrivals.variation**-2
    times = np.cumsum(rng.gamma(shape, 1.0 / (arrivals.rate * shape), count))
    if arrivals.tick:
        times = np.floor(times / arrivals.tick) * arrivals.tick
    result: NDArray[np.float64] = times - times[0]
    return result


def _sharing_prefixes(
    sharing: Sharing,
    arrivals: NDArray[np.float64],
    prompts: NDArray[np.int64],
    outputs: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[Request, ...]:
    """Requests of which a share continues an earlier one: its first blocks, then new ones."""
    count = len(arrivals)
    follows = rng.random(count) < sharing.follow_up
    prompts = np.where(follows, _lengths(sharing.prompt, count, rng), prompts)
    outputs = np.where(follows, _lengths(sharing.output, count, rng), outputs)
    parts = _quantile_draws(sharing.shared_part, count, rng)
    moments = arrivals - _quantile_draws(sharing.pause, count, rng)
    full_blocks = prompts // sharing.hash_block
    wanted = np.rint(parts * -(-prompts // sharing.hash_block)).astype(np.int64)

    requests: list[Request] = []
    sessions: list[int] = []
    fresh = sharing.system_blocks
    for index in range(count):
        earlier = (
            _continued(index, int(wanted[index]), moments[index], arrivals, full_blocks) if follows[index] else None
        )
        shared = int(min(wanted[index], full_blocks[earlier])) if earlier is not None else 0
        shared = max(shared, min(sharing.system_blocks, int(full_blocks[index])))
        known = requests[earlier].hash_ids if earlier is not None else tuple(range(sharing.system_blocks))
        prefix = (known or ())[:shared]
        new = -(-int(prompts[index]) // sharing.hash_block) - len(prefix)
        ids = (*prefix, *range(fresh, fresh + new))
        fresh += new
        sessions.append(sessions[earlier] if earlier is not None else index)
        session = str(sessions[index])
        requests.append(Request(float(arrivals[index]), int(prompts[index]), int(outputs[index]), ids, session))
    return tuple(requests)


def _continued(
    index: int, wanted: int, moment: float, arrivals: NDArray[np.float64], full_blocks: NDArray[np.int64]
) -> int | None:
    """The request before `index`, near `moment`, that has the `wanted` full blocks and few more; None for the first.

    Where none is so long, the longest.
    """
    middle = min(int(np.searchsorted(arrivals[:index], moment)), index)
    first = max(middle - CANDIDATES // 2, 0)
    nearby = full_blocks[first : min(first + CANDIDATES, index)]
    if not len(nearby):
        return None
    excess = np.where(nearby >= wanted, nearby - wanted, TOO_SHORT - nearby)
    return first + int(np.argmin(excess))
