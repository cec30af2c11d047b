"""The two suites that replay a request trace, as measurements: rows of each adapter become records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvbench import __version__
from kvbench.checks import NotApplicable, Violation
from kvbench.interface import CacheManager, PoolSpec
from kvbench.measurement import Announce, Measurement, Request
from kvbench.models import element_format, find_model
from kvbench.reference.memory import bytes_per_token
from kvbench.results import Record
from kvbench.suites.fragmentation import Serving, contiguous_policies, measure_fragmentation, measure_policies
from kvbench.suites.prefix.saved import memory_saved
from kvbench.suites.prefix_reuse import Sharing, measure_ideal_reuse, measure_prefix_reuse
from kvbench.suites.rows import Row
from kvbench.verification import Entry
from kvbench.workloads import Trace, get_trace

BASELINES = "baselines"
"""Name in records of the allocation policies of `kvbench.reference.contiguous`, which belong to no adapter."""

TRACE = "trace"
"""Name in records of what is a property of the trace alone."""

SHARED_TOKENS, OWN_TOKENS = 1024, 64
COMPANIES = (2, 8, 32)
"""How many requests run side by side, each of a common prompt and tokens of its own."""

BEGIN_ALIKE = f"{SHARED_TOKENS} common tokens, {OWN_TOKENS} own"
"""Workload of what is saved among such requests."""


def measure_fragmentation_of(entries: Sequence[Entry], request: Request, announce: Announce) -> Iterator[Record]:
    """Utilisation by block size for each adapter's own manager, and by policy for the contiguous baselines."""
    trace = get_trace(request.trace or "azure-conv", limit=request.requests, seed=request.seed)
    serving = Serving()
    for entry in entries:
        declared = entry.subject.adapter.capabilities.manager
        if declared is None:
            continue

        def announce_entry(text: str, done: int, total: int, name: str = entry.spec) -> None:
            announce(f"fragmentation: {name}, {text}", done, total)

        settings = {} if declared.paged else _settings(entry)  # they say how far ahead it reserves
        for row in measure_fragmentation(_maker(entry), declared, trace, serving, announce_entry):
            yield _record("fragmentation", replace(row, params={**settings, **row.params}), trace, entry)
    for row in measure_policies(contiguous_policies(trace, serving), trace, serving, announce):
        yield _record("fragmentation", row, trace, None, BASELINES)


def measure_prefix_sharing_of(entries: Sequence[Entry], request: Request, announce: Announce) -> Iterator[Record]:
    """Ideal and reached token hit ratios of each manager that caches prefixes."""
    trace = _sharing_trace(request)
    for row in measure_ideal_reuse(trace):
        yield _record("prefix-sharing", row, trace, None, TRACE)
    sharing = Sharing(bytes_per_token=_bytes_per_token(request.model))
    for entry in entries:
        declared = entry.subject.adapter.capabilities.manager
        if declared is None or not declared.prefix_caching:
            continue

        def announce_entry(text: str, done: int, total: int, name: str = entry.spec) -> None:
            announce(f"prefix sharing: {name}, {text}", done, total)

        rows = measure_prefix_reuse(_maker(entry), declared, trace, sharing, announce_entry)
        yield from (_record("prefix-sharing", row, trace, entry) for row in rows)
        yield from _saved_by(entry)


def _saved_by(entry: Entry) -> Iterator[Record]:
    """Blocks saved among requests that begin alike, exactly; nothing from a manager that cannot be asked."""
    block_size = entry.subject.manager.block_sizes.among([16])[0]
    for requests in COMPANIES:
        try:
            rows = list(memory_saved(entry.subject, requests, SHARED_TOKENS, OWN_TOKENS, block_size))
        except (NotApplicable, Violation):
            return
        yield from (_record("prefix-sharing", row, None, entry, workload=BEGIN_ALIKE) for row in rows)


def _settings(entry: Entry) -> dict[str, str]:
    """The value of each setting that the adapter has."""
    subject = entry.subject
    return {
        option.name: subject.config.get(option.name, option.values[0]) for option in subject.adapter.capabilities.config
    }


def _maker(entry: Entry) -> Callable[[PoolSpec], CacheManager]:
    """Makes managers without the guard, which costs time on every call."""

    def make(spec: PoolSpec) -> CacheManager:
        made: CacheManager = entry.subject.new_manager(spec).unguarded
        return made

    return make


def _sharing_trace(request: Request) -> Trace:
    """The trace that was asked for. Where it is asked of all suites alike and says nothing of content, our own."""
    if request.trace is not None:
        trace = get_trace(request.trace, limit=request.requests, seed=request.seed)
        if trace.hash_block is not None or request.whole_trace:
            return trace
    return get_trace("mooncake-conv", limit=request.requests, seed=request.seed)


def _bytes_per_token(model: str | None) -> int:
    """K/V bytes of a token in all layers in bf16, of the usual 8B model by default. Raises `UsageError`."""
    return bytes_per_token(find_model(model or "llama-3.1-8b").groups(element_format("bf16")))


def _record(
    suite: str, row: Row, trace: Trace | None, entry: Entry | None, owner: str = "", workload: str = ""
) -> Record:
    """The record of a row. owner: who it belongs to, where that is no adapter; workload: where it is no trace."""
    about: dict[str, Any] = {"adapter": owner, "version": __version__}
    if entry is not None:
        config = {key: value for key, value in entry.subject.config.items() if key != "precision"}
        about = {"adapter": entry.subject.adapter.name, "version": entry.subject.adapter.version, "config": config}
    return Record(
        suite=suite,
        metric=row.metric,
        value=float(row.value),
        unit=row.unit,
        workload=workload if trace is None else Path(trace.name).name,
        params=dict(row.params),
        **about,
    )


FRAGMENTATION = Measurement(
    "fragmentation",
    "how much of the memory that is taken holds K/V, by block size, over a request trace",
    measure_fragmentation_of,
)
PREFIX_SHARING = Measurement(
    "prefix-sharing",
    "how much of a trace's prompts is hit: the ideal, and what managers reach with pools of several sizes",
    measure_prefix_sharing_of,
)
