"""How the cache grows, and what it is for: bytes by model and context beside the weights; decoding with and without it.

The first is arithmetic over published shapes, the second a race of the small decoder of `kvbench.reference.recompute`
against itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import kvbench
from kvbench.measure.race import race
from kvbench.measure.statistics import Estimate, compare, median
from kvbench.measurement import Announce, Measurement, Request
from kvbench.models import Model, element_format, find_model
from kvbench.reference.memory import sequence_bytes
from kvbench.reference.recompute import (
    TinyDecoder,
    generate_with_cache,
    generate_without_cache,
    make_decoder,
    operations_with_cache,
    operations_without_cache,
)
from kvbench.results import Record
from kvbench.verification import Entry

MODELS = ("llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "gemma-3-12b", "deepseek-v3", "qwen3-next-80b-a3b")
"""As many KV heads as query heads, fewer of them, more layers, mostly windows, latent, mostly linear attention."""

CONTEXTS = (4096, 32768, 131072)

PROMPT = 16
STEPS = (8, 32, 128)
"""Tokens generated after a prompt of `PROMPT`."""

DECODER = {"num_layers": 2, "num_q_heads": 8, "num_kv_heads": 8, "head_dim": 32, "width": 256}
"""Large enough for arithmetic to outweigh the calls around it."""

KEPT, COMPUTED_AGAIN = "with-cache", "without-cache"
"""Names in records of the two ways to decode."""


def measure(_: Sequence[Entry], request: Request, announce: Announce) -> Iterator[Record]:
    """The same for all adapters: what is measured here belongs to none of them."""
    announce("growth: bytes by model", 0, len(STEPS) + 1)
    names = MODELS if request.model is None else (request.model,)
    for model in map(find_model, names):
        yield from bytes_of(model)
    decoder = make_decoder(request.seed, **DECODER)
    for done, steps in enumerate(STEPS, start=1):
        announce(f"growth: {steps} tokens with and without a cache", done, len(STEPS) + 1)
        yield from with_and_without(decoder, steps, request)


def bytes_of(model: Model) -> Iterator[Record]:
    """K/V bytes of one sequence in bf16 at each context that the model has, beside the bytes of its weights."""
    groups = model.groups(element_format("bf16"))
    contexts = [context for context in CONTEXTS if context <= model.max_context]
    for context in contexts:
        taken = sequence_bytes(groups, context)
        yield _record(model.name, "kv_bytes", taken, "bytes", "bf16", context=context)
        if model.weight_bytes:
            yield _record(model.name, "weight_bytes", model.weight_bytes, "bytes", "bf16", context=context)
            yield _record(model.name, "share_of_weights", taken / model.weight_bytes, "ratio", "bf16", context=context)


def with_and_without(decoder: TinyDecoder, steps: int, request: Request) -> Iterator[Record]:
    """Seconds and operations of generating `steps` tokens in both ways, and how many times faster the cache is."""
    prompt = list(range(PROMPT))
    ways: dict[str, Callable[[int], object]] = {
        KEPT: lambda turn: generate_with_cache(decoder, prompt, steps),
        COMPUTED_AGAIN: lambda turn: generate_without_cache(decoder, prompt, steps),
    }
    seconds = request.budget.race_seconds / len(STEPS)
    times = race(ways, rounds=request.budget.rounds, seed=request.seed, seconds=seconds, minimum=3)
    operations = {KEPT: operations_with_cache(PROMPT, steps), COMPUTED_AGAIN: operations_without_cache(PROMPT, steps)}
    workload = f"decode after {PROMPT} tokens"
    for way in ways:
        yield _measured(way, "generation_time", median(times[way]), "s", workload, steps)
        yield _record(way, "projected_tokens", operations[way].projections, "tokens", workload, steps=steps)
        yield _record(way, "query_key_pairs", operations[way].pairs, "query-key pairs", workload, steps=steps)
    yield _measured(KEPT, "speed_up", compare(times[KEPT], times[COMPUTED_AGAIN]).ratio, "x", workload, steps)


def _record(adapter: str, metric: str, value: float, unit: str, workload: str, **params: int) -> Record:
    """A record of what belongs to no adapter."""
    return Record(
        suite="growth", adapter=adapter, version=kvbench.__version__, metric=metric, value=float(value), unit=unit,
        workload=workload, params=dict(params),
    )  # fmt: skip


def _measured(adapter: str, metric: str, found: Estimate, unit: str, workload: str, steps: int) -> Record:
    record = _record(adapter, metric, found.value, unit, workload, steps=steps)
    return replace(record, low=found.low, high=found.high, samples=found.samples)


GROWTH = Measurement(
    "growth",
    "what the cache takes by model and context, beside the weights, and what decoding without one costs",
    measure,
)

__all__ = ["GROWTH", "bytes_of", "with_and_without"]
