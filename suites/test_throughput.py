"""Speed, measured by pytest-benchmark: `--benchmark-compare` and its storage work as for any benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from kvbench.suites.throughput.contestants import NotTimed, enter
from kvbench.suites.throughput.managers import drills
from kvbench.suites.throughput.shapes import Heads, Workload, workloads
from kvbench.verification import Entry

WORKLOADS = {workload.name: workload for workload in workloads(quick=True)}
ROUNDS = 10


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    group: str | None
    extra_info: dict[str, Any]

    def pedantic(self, target: Callable[..., object], **options: object) -> object: ...


def _turns(call: Callable[[int], object]) -> Callable[[], tuple[tuple[int], dict[str, Any]]]:
    """Set-up that hands the turn's number to each round, so that buffers rotate."""
    turn = -1

    def setup() -> tuple[tuple[int], dict[str, Any]]:
        nonlocal turn
        turn += 1
        return (turn,), {}

    call(0)
    return setup


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_kernel(kv_entry: Entry, kv_seed: int, workload: Workload, benchmark: Benchmark) -> None:
    """One call of the adapter's kernel, checked before it is timed, on buffers that no cache holds."""
    if not kv_entry.subject.own_kernel:
        pytest.skip(f"{kv_entry.subject.adapter.name} has no kernel of its own")
    try:
        contestant = enter(kv_entry.subject, workload, Heads(), kv_seed)
    except NotTimed as reason:
        pytest.skip(str(reason))
    benchmark.group = workload.name
    benchmark.extra_info.update(bytes=contestant.moved, new_tokens=workload.new_tokens)
    benchmark.pedantic(contestant.call, setup=_turns(contestant.call), rounds=ROUNDS)


@pytest.mark.parametrize("metric", ["append_rate", "lookup_rate"])
def test_manager(kv_entry: Entry, metric: str, benchmark: Benchmark) -> None:
    """Many operations of the adapter's manager."""
    if not kv_entry.subject.own_manager:
        pytest.skip(f"{kv_entry.subject.adapter.name} has no manager of its own")
    drill = next((drill for drill in drills(kv_entry.subject) if drill.metric == metric), None)
    if drill is None:
        pytest.skip("prefix caching is not declared")
    benchmark.group = metric
    benchmark.extra_info["operations"] = drill.operations
    benchmark.pedantic(drill.call, setup=_turns(drill.call), rounds=ROUNDS)
