"""`kvbench estimate`: KV memory of a model by token, block and sequence, beside its weights."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import asdict, dataclass

from kvbench.cli.console import Output
from kvbench.errors import UsageError
from kvbench.models import Model, element_format, find_model
from kvbench.reference.memory import (
    LayerGroup,
    block_bytes,
    bytes_per_token,
    ceil_div,
    paged_bytes,
    rounding_share,
    sequence_bytes,
    sequences_that_fit,
    uniform_bytes,
)

SIZE_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}


@dataclass(frozen=True)
class Growth:
    """The cache of one sequence at one context length; `of_weights` is a multiple of the weights (None: unknown)."""

    context: int
    bytes: int
    of_weights: float | None


@dataclass(frozen=True)
class Fit:
    """How many sequences fit beside the weights of one rank.

    free_bytes: memory without the weights; activations and the engine's own needs are not taken off.
    paged: in blocks, each sequence as long as `context`. reserved: with the model's longest context set aside for each,
    every layer keeping every token, as a cache without blocks does.
    """

    gpu_memory: int
    free_bytes: int
    weights_known: bool
    paged: int
    reserved: int


@dataclass(frozen=True)
class Estimate:
    """What `kvbench estimate` says. Sizes are bytes on one tensor-parallel rank, lengths tokens.

    bytes_per_token: what one more token adds to a long sequence; bytes_per_token_at_first: before windows are full.
    state_bytes: of a sequence, whatever its length (linear attention).
    bytes_per_sequence: live tokens and fixed state alone; paged_bytes_per_sequence: in whole blocks.
    """

    model: str
    kind: str
    source: str
    note: str
    dtype: str
    tensor_parallel: int
    block_size: int
    context: int
    max_context: int
    batch: int
    bytes_per_token: int
    bytes_per_token_at_first: int
    bytes_per_block: int
    state_bytes: int
    bytes_per_sequence: int
    paged_bytes_per_sequence: int
    rounding_share: float
    bytes_for_batch: int
    parameters: int | None
    parameters_source: str | None
    weight_bytes: int | None
    sequences_per_weights: float | None
    growth: tuple[Growth, ...]
    fit: Fit | None


def run(parsed: Namespace, output: Output) -> int:
    """Estimate and print."""
    made = estimate(
        parsed.model,
        context=parsed.context,
        batch=parsed.batch,
        dtype=parsed.dtype,
        block_size=parsed.block_size,
        gpu_memory=parsed.gpu_memory,
        tensor_parallel=parsed.tensor_parallel,
    )
    output.json(asdict(made))
    if not output.as_json:
        from kvbench.cli.estimate_table import render

        render(made, output.console)
    return 0


def estimate(
    name: str,
    *,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    block_size: int = 16,
    gpu_memory: str | None = None,
    tensor_parallel: int = 1,
) -> Estimate:
    """KV memory of the model called `name`. Raises `UsageError` for an unknown name or a size that makes no sense."""
    model = find_model(name)
    element = element_format(dtype)
    context = model.max_context if context is None else context
    for option, value in (
        ("--context", context), ("--batch", batch), ("--block-size", block_size), ("--tensor-parallel", tensor_parallel)
    ):  # fmt: skip
        if value < 1:
            raise UsageError(f"{option} {value}: must be 1 or more")
    groups = model.groups(element, tensor_parallel)
    weights = None if model.weight_bytes is None else ceil_div(model.weight_bytes, tensor_parallel)
    paged = paged_bytes(groups, context, block_size)
    return Estimate(
        model=model.name,
        kind=model.kind,
        source=model.source,
        note=model.note,
        dtype=element.name,
        tensor_parallel=tensor_parallel,
        block_size=block_size,
        context=context,
        max_context=model.max_context,
        batch=batch,
        bytes_per_token=bytes_per_token(groups),
        bytes_per_token_at_first=bytes_per_token(groups, 0),
        bytes_per_block=block_bytes(groups, block_size),
        state_bytes=sum(group.state_bytes for group in groups),
        bytes_per_sequence=sequence_bytes(groups, context),
        paged_bytes_per_sequence=paged,
        rounding_share=rounding_share(groups, context, block_size),
        bytes_for_batch=batch * paged,
        parameters=model.parameters,
        parameters_source=model.parameters_source,
        weight_bytes=weights,
        sequences_per_weights=None if weights is None else weights / paged,
        growth=tuple(_growth(groups, weights, length) for length in _lengths(context)),
        fit=None if gpu_memory is None else _fit(model, groups, weights, parse_size(gpu_memory), paged),
    )


def parse_size(text: str) -> int:
    """Bytes of "80GB" (decimal), "80GiB" (binary), "141e9" or "1.5 TiB". Raises `UsageError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\+?\d{1,2})?)\s*([a-z]*)\s*", text.casefold())
    if match is None or match[2] not in SIZE_UNITS:
        raise UsageError(
            f"size {text!r}: expected a number of bytes with or without a unit, such as 80GB, 80GiB or 141e9"
        )
    size = int(float(match[1]) * SIZE_UNITS[match[2]])
    if size < 1:
        raise UsageError(f"size {text!r}: must be at least one byte")
    return size


def _lengths(context: int) -> list[int]:
    """Powers of four from 1,024 tokens, and the context itself."""
    return [length for power in range(8) if (length := 1024 * 4**power) < context] + [context]


def _growth(groups: tuple[LayerGroup, ...], weights: int | None, length: int) -> Growth:
    size = sequence_bytes(groups, length)
    return Growth(length, size, None if weights is None else size / weights)


def _fit(model: Model, groups: tuple[LayerGroup, ...], weights: int | None, memory: int, paged: int) -> Fit:
    free = memory - (weights or 0)
    reserved = uniform_bytes(groups, model.max_context)
    return Fit(
        gpu_memory=memory,
        free_bytes=max(0, free),
        weights_known=weights is not None,
        paged=sequences_that_fit(free, paged),
        reserved=sequences_that_fit(free, reserved),
    )
