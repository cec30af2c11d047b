"""Result folders as kvbench writes them, small enough to read and rich enough to fill every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbench.counterexample import Counterexample
from kvbench.results import Record, ResultFolder
from kvbench.timeline import Timeline, TimelineStep

ENVIRONMENT = {
    "time": "2026-11-30T09:12:41+00:00",
    "cpu": "Exemplar 9000 2-Core Processor",
    "cores": 2,
    "memory_bytes": 24 * 2**30,
    "gpu": None,
    "os": "Linux 6.1",
    "threads": 2,
    "load": 0.31,
    "versions": {"kvbench": "0.1.0", "python": "3.12.8", "torch": "2.13.0"},
    "revision": "2df1bd5",
}

STALE_HIT = Timeline(
    num_blocks=12,
    steps=(
        TimelineStep(
            "begin a with 12 tokens", {"0": ("a",), "1": ("a",), "2": ("a",)}, wrote=(0, 1, 2), read=(0, 1, 2)
        ),
        TimelineStep("fork a to b", {"0": ("a", "b"), "1": ("a", "b"), "2": ("a", "b")}),
        TimelineStep("extend b by 1", {"0": ("a", "b"), "1": ("a", "b"), "2": ("a",), "3": ("b",)}, wrote=(3,)),
        TimelineStep("free a", {"0": ("b",), "1": ("b",), "3": ("b",)}),
        TimelineStep(
            "begin c with 12 tokens",
            {"0": ("b",), "1": ("b", "c"), "2": ("c",), "3": ("b",), "4": ("c",)},
            wrote=(1, 2, 4),
            note="block 1 is written although b still holds it",
        ),
        TimelineStep(
            "decode b",
            {"0": ("b",), "1": ("b", "c"), "2": ("c",), "3": ("b",), "4": ("c",)},
            wrote=(3,),
            read=(0, 1, 3),
            bad=(1,),
            note="b reads c's token 0 where its own token 4 belongs",
        ),
    ),
)

CHECKS = {
    "correctness": ["output", "lse", "chunking", "batch neighbours", "relabelling", "poison", "padding", "options"],
    "lifecycle": ["conservation", "content", "atomic failure", "liveness", "drain", "fork"],
    "prefix": ["complete hits", "isolation", "exactness"],
}


def write_folder(
    path: Path,
    records: Iterable[Record],
    counterexamples: Iterable[tuple[str, Counterexample]] = (),
    environment: dict[str, Any] | None = None,
) -> Path:
    """A result folder with these records, in order, and counterexamples by file name without `.json`."""
    with ResultFolder(path) as folder:
        folder.write_json("environment.json", ENVIRONMENT if environment is None else environment)
        for stem, counterexample in counterexamples:
            folder.write_counterexample(stem, counterexample)
        for record in records:
            folder.append(record)
    return path


def counterexample(check: str, adapter: str, **values: Any) -> Counterexample:
    defaults: dict[str, Any] = {
        "version": "1.0",
        "config": {},
        "seed": 7,
        "case": {"block_size": 4, "operations": [["begin", "a", 12], ["fork", "a", "b"]]},
        "message": f"{adapter} does not keep {check}",
        "story": ("begin a with 12 tokens: blocks 0, 1, 2", "fork a to b: b holds 0, 1, 2 too", "free a"),
        "timeline": STALE_HIT,
        "reproduced": "3 of 3",
        "on_reference": "passes",
        "versions": {"kvbench": "0.1.0", "torch": "2.13.0"},
    }
    return Counterexample(check=check, adapter=adapter, **{**defaults, **values})


def check(adapter: str, name: str, verdict: str = "pass", **values: Any) -> Record:
    suite = name.partition(".")[0]
    counted = {"value": 25.0, "unit": "cases", "samples": (0.4,)} if verdict != "skip" else {}
    defaults = {"version": "1.0", "params": {"seed": 0}, "verdict": verdict, **counted}
    return Record(suite=suite, adapter=adapter, check=name, **{**defaults, **values})


def metric(suite: str, adapter: str, name: str, value: float | None, unit: str, **values: Any) -> Record:
    return Record(suite=suite, adapter=adapter, metric=name, value=value, unit=unit, **{"version": "1.0", **values})


def checks(adapter: str, failing: dict[str, str] | None = None, skipping: dict[str, str] | None = None) -> list[Record]:
    """All of `CHECKS`; `failing`: check to message, with a counterexample; `skipping`: suite to reason."""
    made = []
    for suite, names in CHECKS.items():
        for short in names:
            name = f"{suite}.{short.replace(' ', '_')}"
            if name in (failing or {}):
                file = f"{adapter}-{name}.json"
                made.append(check(adapter, name, "fail", reason=(failing or {})[name], counterexample=file))
            elif suite in (skipping or {}):
                made.append(check(adapter, name, "skip", reason=(skipping or {})[suite]))
            else:
                made.append(check(adapter, name))
    return made


def fragmentation(adapter: str, trace: str = "chat", policy: str | None = None) -> list[Record]:
    settings: list[dict[str, Any]] = [{"policy": policy}] if policy else [{"block_size": 8 << i} for i in range(6)]
    made = []
    for place, setting in enumerate(settings):
        held = 0.24 if policy else 0.99 - 0.012 * 1.9**place
        rest = 1 - held
        shares = (held, 0.07, 0.53, 0.16) if policy else (held, rest * 0.9, 0.0, rest * 0.1)
        names = ("effective_utilisation", "internal_fragmentation", "reserved", "external_fragmentation")
        params = {**setting, "pool_tokens": 131072, "requests": 1000}
        made += [
            metric("fragmentation", adapter, name, share, "ratio", workload=trace, params=params)
            for name, share in zip(names, shares, strict=True)
        ]
        made.append(
            metric("fragmentation", adapter, "preemptions", 3.0 * place, "events", workload=trace, params=params)
        )
    return made


def sharing(adapter: str, worse: float = 0.0, trace: str = "conversation") -> list[Record]:
    made = []
    for share, ratio in ((0.01, 0.07), (0.03, 0.16), (0.1, 0.29), (0.3, 0.37), (1.0, 0.4)):
        params = {"pool_share": share, "pool_tokens": share * 5e7, "block_size": 16}
        hits = ratio * (1 - worse)
        made.append(metric("prefix-sharing", adapter, "token_hit_ratio", hits, "ratio", workload=trace, params=params))
        saved = hits * 9e12
        made.append(metric("prefix-sharing", adapter, "bytes_saved", saved, "bytes", workload=trace, params=params))
    return made


def ideal(trace: str = "conversation") -> Record:
    return metric("prefix-sharing", "trace", "ideal_token_hit_ratio", 0.405, "ratio", workload=trace)


def speed(adapter: str, factor: float, precision: str = "f32") -> list[Record]:
    decode, prefill = "decode 8 x 4096", "prefill 1 x 2048"
    common = {"config": {"precision": precision}, "version": "1.0"}

    def rate(name: str, value: float, unit: str, workload: str) -> Record:
        near = {"low": value * 0.97, "high": value * 1.04}
        params = {"batch": 8, "heads": "32/8", "head_dim": 128}
        return metric("throughput", adapter, name, value, unit, workload=workload, params=params, **near, **common)

    return [
        rate("decode_tokens_per_second", 900 * factor, "tokens/s/layer", decode),
        rate("decode_bandwidth", 14e9 * factor, "bytes/s", decode),
        rate("share_of_floor", 0.7 * factor, "ratio", decode),
        rate("prefill_tokens_per_second", 15000 * factor, "tokens/s/layer", prefill),
    ]


def against(adapter: str, ratio: float, text: str, baseline: str = "sdpa-contiguous") -> Record:
    return metric(
        "throughput", adapter, "relative_speed", ratio, "x", workload="decode 8 x 4096", params={"baseline": baseline},
        low=ratio * 0.98, high=ratio * 1.02, reason=text, config={"precision": "f32"},
    )  # fmt: skip


def floor() -> Record:
    return metric("throughput", "machine", "memory_bandwidth", 20e9, "bytes/s", workload="decode 8 x 4096", version="")


STALE = "After fork and free of the parent, block 1 was given out again although b still held it: b read c's tokens."
GARBAGE = "Prefill of 33 tokens in f16 differs from float64 by 41.7, where this precision allows 0.0031."


def compared() -> tuple[list[Record], list[tuple[str, Counterexample]]]:
    """Records and counterexamples of a comparison: two clean adapters, one that skips, one with two findings."""
    failing = {"lifecycle.content": STALE, "correctness.output": GARBAGE}
    records = [
        *checks("reference"),
        *checks("torch", skipping=dict.fromkeys(["lifecycle", "prefix"], "torch has no manager of its own")),
        *checks("contiguous", skipping={"prefix": "it does not declare prefix caching"}),
        *checks("glacier", failing),
        *fragmentation("reference"), *fragmentation("glacier"), *fragmentation("contiguous", policy="reserve-max"),
        *fragmentation("baselines", policy="buddy"),
        ideal(), *sharing("reference"), *sharing("glacier", 0.22),
        floor(), *speed("torch", 1.0), *speed("glacier", 1.18, "f16"), *speed("reference", 0.12),
        *speed("sdpa-contiguous", 1.21),
        against("torch", 0.83, "slower, 0.83x (0.81 to 0.85)"),
        against("glacier", 0.99, "no difference larger than 3 %"),
        metric("throughput", "glacier", "append_rate", 2.1e6, "/s", workload="managers", low=2.0e6, high=2.2e6),
        metric("throughput", "reference", "append_rate", 1.4e5, "/s", workload="managers", low=1.3e5, high=1.5e5),
        metric("throughput", "contiguous", "decode_tokens_per_second", None, "tokens/s/layer", verdict="skip",
               reason="not timed: it has no kernel of its own"),
        metric("weather", "glacier", "cloud_cover", 0.3, "ratio", workload="alps"),
    ]  # fmt: skip
    saved = [
        ("glacier-lifecycle.content", counterexample("lifecycle.content", "glacier", message=STALE)),
        ("glacier-correctness.output", counterexample("correctness.output", "glacier", message=GARBAGE, timeline=None)),
    ]
    return records, saved


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The functions above, which `--import-mode=importlib` keeps from being imported."""
    return SimpleNamespace(
        check=check, checks=checks, metric=metric, counterexample=counterexample, fragmentation=fragmentation,
        sharing=sharing, ideal=ideal, speed=speed, against=against, floor=floor, environment=ENVIRONMENT,
        timeline=STALE_HIT,
    )  # fmt: skip


@pytest.fixture(scope="session")
def compared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records, saved = compared()
    return write_folder(tmp_path_factory.mktemp("runs") / "nightly", records, saved)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder of given records below the test's own."""

    def write(*records: Record, name: str = "run", **more: Any) -> Path:
        return write_folder(tmp_path / name, records, **more)

    return write
