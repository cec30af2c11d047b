"""The throughput suite: all adapters in one race a workload, each figure beside the machine's own bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvbench.measure.bandwidth import read_bandwidth_probe
from kvbench.measure.race import race
from kvbench.measure.statistics import compare, median, noise_warning
from kvbench.measurement import Announce, Measurement, Request
from kvbench.results import Record
from kvbench.suites.throughput.contestants import Contestant, NotTimed, contiguous_baseline, enter
from kvbench.suites.throughput.managers import drills
from kvbench.suites.throughput.shapes import Heads, Workload, workloads
from kvbench.verification import Entry

BASELINE = "sdpa-contiguous"
"""Name of the baseline in records: grouped-query SDPA on contiguous K/V."""

PROBE = "machine"
"""Name in records of what belongs to no adapter."""

RATES = {
    "decode": "decode_tokens_per_second",
    "prefill": "prefill_tokens_per_second",
    "mixed": "mixed_tokens_per_second",
}


def measure(entries: Sequence[Entry], request: Request, announce: Announce) -> Iterator[Record]:
    """Race the kernels on each workload, then the managers on each drill."""
    heads = heads_of(request.model)
    chosen = workloads(request.budget.name == "quick")
    precisions = ["f32"] if request.budget.name == "quick" else ["f32", "bf16"]
    total = len(chosen) * len(precisions) + 1
    done = 0
    for precision in precisions:
        for workload in chosen:
            announce(f"throughput: {workload.name} {precision}", done, total)
            yield from _race_kernels(entries, workload, heads, precision, request)
            done += 1
    announce("throughput: managers", done, total)
    yield from _race_managers(entries, request)
    announce("done", total, total)


def heads_of(model: str | None) -> Heads:
    """Attention shape of a model; of the usual 8B one by default. Raises `UsageError`."""
    if model is None:
        return Heads()
    from kvbench.models import find_model

    shape = find_model(model)
    return Heads(shape.q_heads, shape.kv_heads, shape.head_dim)


def _race_kernels(
    entries: Sequence[Entry], workload: Workload, heads: Heads, precision: str, request: Request
) -> Iterator[Record]:
    contestants: dict[str, Contestant] = {}
    owners: dict[str, Entry] = {}
    for entry in entries:
        if not entry.subject.own_kernel:
            continue
        subject = entry.subject.at_nearest_precision(entry.subject.config.get("precision", precision))
        entry = Entry(entry.spec, subject)
        if precision not in ("f32", subject.precision.name):
            continue
        try:
            contestants[entry.spec] = enter(subject, workload, heads, request.seed)
            owners[entry.spec] = entry
        except NotTimed as reason:
            yield _untimed(entry, workload, str(reason))
    if not contestants:
        return
    if workload.name == "decode":
        first = next(iter(owners.values())).subject
        contestants[BASELINE] = contiguous_baseline(workload, heads, first, request.seed)
    read_bytes, probe = read_bandwidth_probe()
    calls = {name: contestant.call for name, contestant in contestants.items()}
    times = race(
        {**calls, PROBE: probe},
        rounds=request.budget.rounds,
        seed=request.seed,
        seconds=request.budget.race_seconds,
    )
    yield from _kernel_records(contestants, owners, workload, heads, times, read_bytes)


def _kernel_records(
    contestants: Mapping[str, Contestant],
    owners: Mapping[str, Entry],
    workload: Workload,
    heads: Heads,
    times: Mapping[str, Sequence[float]],
    read_bytes: int,
) -> Iterator[Record]:
    import torch

    bandwidth = median([read_bytes / seconds for seconds in times[PROBE]])
    shape = f"{workload.name} {len(workload.rows)} x {workload.rows[0][0]}"
    yield Record(
        suite="throughput", adapter=PROBE, version="", metric="memory_bandwidth", workload=shape, unit="bytes/s",
        params={"threads": torch.get_num_threads()}, **_estimate(bandwidth),
    )  # fmt: skip
    for name, contestant in contestants.items():
        owner = owners.get(name)
        about: dict[str, Any] = {
            "suite": "throughput",
            "adapter": owner.subject.adapter.name if owner else BASELINE,
            "version": owner.subject.adapter.version if owner else str(torch.__version__),
            "config": {"precision": contestant.spec.precision.name, **(owner.subject.config if owner else {})},
            "workload": shape,
            "params": {
                "batch": len(workload.rows),
                "context": workload.rows[0][0],
                "heads": f"{heads.num_q_heads}/{heads.num_kv_heads}",
                "head_dim": heads.head_dim,
                "block_size": contestant.spec.block_size if owner else None,
            },
            "reason": noise_warning(times[name]) or "",
        }
        about["params"] = {key: value for key, value in about["params"].items() if value is not None}
        rates = median([workload.new_tokens / seconds for seconds in times[name]])
        yield Record(metric=RATES[workload.name], unit="tokens/s/layer", **about, **_estimate(rates))
        # The floor of the same round: the machine's drift cancels.
        shares = median(
            [
                contestant.moved / seconds / (read_bytes / ours)
                for seconds, ours in zip(times[name], times[PROBE], strict=True)
            ]
        )
        if workload.name == "decode":
            moved = median([contestant.moved / seconds for seconds in times[name]])
            yield Record(metric="decode_bandwidth", unit="bytes/s", **about, **_estimate(moved))
            yield Record(metric="share_of_floor", unit="ratio", **about, **_estimate(shares))
    yield from _relative(contestants, owners, shape, times)


def _relative(
    contestants: Mapping[str, Contestant], owners: Mapping[str, Entry], shape: str, times: Mapping[str, Sequence[float]]
) -> Iterator[Record]:
    baseline = BASELINE if BASELINE in contestants else next(iter(owners))
    for name, owner in owners.items():
        if name == baseline:
            continue
        outcome = compare(times[name], times[baseline])
        yield Record(
            suite="throughput",
            adapter=owner.subject.adapter.name,
            version=owner.subject.adapter.version,
            config={"precision": contestants[name].spec.precision.name, **owner.subject.config},
            metric="relative_speed",
            workload=shape,
            unit="x",
            params={"baseline": baseline},
            reason=outcome.text,
            **_estimate(outcome.ratio),
        )


def _race_managers(entries: Sequence[Entry], request: Request) -> Iterator[Record]:
    own = {entry.spec: entry for entry in entries if entry.subject.own_manager}
    made = {spec: drills(entry.subject) for spec, entry in own.items()}
    for metric in ("append_rate", "lookup_rate"):
        taking_part = {spec: drill for spec, found in made.items() for drill in found if drill.metric == metric}
        if not taking_part:
            continue
        times = race(
            {spec: drill.call for spec, drill in taking_part.items()},
            rounds=request.budget.rounds,
            seed=request.seed,
            seconds=request.budget.race_seconds,
        )
        for spec, drill in taking_part.items():
            adapter = own[spec].subject.adapter
            yield Record(
                suite="throughput",
                adapter=adapter.name,
                version=adapter.version,
                metric=metric,
                workload="managers",
                unit="/s",
                reason=noise_warning(times[spec]) or "",
                **_estimate(median([drill.operations / seconds for seconds in times[spec]])),
            )


def _estimate(found: Any) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "samples": found.samples}


def _untimed(entry: Entry, workload: Workload, reason: str) -> Record:
    adapter = entry.subject.adapter
    return Record(
        suite="throughput",
        adapter=adapter.name,
        version=adapter.version,
        config=dict(entry.subject.config),
        metric=RATES[workload.name],
        workload=workload.name,
        unit="tokens/s/layer",
        verdict="skip",
        reason=f"not timed: {reason}",
    )


MEASUREMENT = Measurement(
    "throughput",
    "decode, prefill and mixed batches against the memory bandwidth; appends and lookups of managers",
    measure,
)
