"""What takes part in a race: each adapter's kernel on its own rotating buffers, and attention on contiguous K/V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.environment import last_level_cache
from kvbench.errors import CacheError
from kvbench.interface import AttentionResult, Batch, CacheSpec
from kvbench.reference.attention import attend_dense
from kvbench.subject import EngineError, GuardedKernel, Subject
from kvbench.suites.throughput.shapes import Heads, Workload, batch_of, bytes_moved, spec_for, tables

FILL_CHUNK = 512
"""Tokens of context written in one call while a cache is filled."""


@dataclass(frozen=True)
class Contestant:
    """A timed call: `call(turn)` does the work once on the buffers of that turn; `moved` bytes at least per call."""

    call: Callable[[int], object]
    moved: float
    spec: CacheSpec


class NotTimed(Exception):
    """Why an adapter is not timed on a workload."""


def block_size_of(subject: Subject) -> int:
    """The block size that an adapter is timed at: 16 if it can, else the nearest it declares."""
    return subject.kernel.block_sizes.among([16, 32, 64, 128])[0]


def enter(subject: Subject, workload: Workload, heads: Heads, seed: int) -> Contestant:
    """A contestant whose output has been checked. Raises `NotTimed`."""
    capabilities = subject.kernel
    if heads.head_dim not in capabilities.head_dims:
        raise NotTimed(f"head_dim {heads.head_dim} is not declared")
    if heads.num_q_heads // heads.num_kv_heads not in capabilities.gqa_ratios:
        raise NotTimed(f"{heads.num_q_heads} query heads to {heads.num_kv_heads} KV heads are not declared")
    spec = spec_for(heads, subject.precision, block_size_of(subject))
    try:
        return _prepare(subject.new_kernel(), subject, workload, spec, seed)
    except (EngineError, CacheError) as error:
        raise NotTimed(str(error)) from None


def _prepare(kernel: GuardedKernel, subject: Subject, workload: Workload, spec: CacheSpec, seed: int) -> Contestant:
    moved = bytes_moved(workload, spec)
    copies = max(1, -(-2 * last_level_cache() // int(moved)))
    per_copy = workload.slots(spec.block_size)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(copies * per_copy, generator=generator).int()
    cache = kernel.create(spec, copies * per_copy)
    calls = []
    for copy in range(copies):
        table = tables(workload, spec.block_size, copy * per_copy, order)
        write = _writer(kernel, cache, writes="write" in subject.kernel.operations)
        keys, values = _fill(write, workload, table, spec, generator)
        batch = batch_of(workload.rows, table, spec, generator)
        if copy == 0:
            _check(kernel.forward(cache, batch), batch, keys, values)
        calls.append(_call(kernel, cache, batch, plans="plan" in subject.kernel.operations))
    return Contestant(lambda turn: calls[turn % copies](), moved, spec)


def _call(kernel: GuardedKernel, cache: object, batch: Batch, plans: bool) -> Callable[[], AttentionResult]:
    """The timed call: planned where the engine has such a thing, without our guard around it."""
    if plans:
        return kernel.plan(cache, batch)
    forward = kernel.unguarded.forward
    return lambda: forward(cache, batch)


def _writer(kernel: GuardedKernel, cache: object, writes: bool) -> Callable[[Batch], object]:
    """Writes a batch's K/V: through the write half alone where there is one, since attending costs much more."""
    if writes:
        return lambda batch: kernel.write(cache, batch.k, batch.v, batch.slot_mapping)
    return lambda batch: kernel.forward(cache, batch)


def _fill(
    write: Callable[[Batch], object], workload: Workload, table: Tensor, spec: CacheSpec, generator: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Write the context of every row through the kernel itself; return K and V of each row."""
    keys, values = [], []
    for row, (context, new) in enumerate(workload.rows):
        k_parts = [torch.empty(0, spec.num_kv_heads, spec.head_dim, dtype=getattr(torch, spec.precision.compute))]
        v_parts = [k_parts[0].new_empty(0, spec.num_kv_heads, spec.value_dim)]
        for start in range(0, context - new, FILL_CHUNK):
            end = min(start + FILL_CHUNK, context - new)
            chunk = batch_of([(end, end - start)], table[row : row + 1], spec, generator)
            write(chunk)
            k_parts.append(chunk.k)
            v_parts.append(chunk.v)
        keys.append(torch.cat(k_parts))
        values.append(torch.cat(v_parts))
    return keys, values


def _check(result: AttentionResult, batch: Batch, keys: list[Tensor], values: list[Tensor]) -> None:
    """Raise `NotTimed` if the output is not attention: speed says nothing about a wrong answer.

    The correctness suite is the judge of small errors; this one asks only that the output correlates with the truth,
    so that a quantised cache passes and garbage does not. One token a row is looked at.
    """
    last = [
        int(end) - 1
        for end, start in zip(batch.query_start_loc[1:], batch.query_start_loc, strict=False)
        if end > start
    ]
    full_keys, full_values = [], []
    for row, (k, v) in enumerate(zip(keys, values, strict=True)):
        new = slice(int(batch.query_start_loc[row]), int(batch.query_start_loc[row + 1]))
        full_keys.append(torch.cat([k, batch.k[new]]))
        full_values.append(torch.cat([v, batch.v[new]]))
    truth = attend_dense(batch.q[last], full_keys, full_values, list(range(len(last) + 1))).out.flatten()
    found = result.out[last].double().flatten()
    error = float((found - truth).norm() / truth.norm())
    if not error < 0.1:
        raise NotTimed(f"its output is wrong (relative error {error:.2g}), so its speed means nothing")


def contiguous_baseline(workload: Workload, heads: Heads, subject: Subject, seed: int) -> Contestant:
    """Grouped-query scaled_dot_product_attention on contiguous K/V of the same size, decode only.

    Queries of a group are the rows of one matrix ([batch, kv_heads, group, dim]), the form in which torch reads K/V
    once a group.
    """
    spec = replace(spec_for(heads, subject.precision, 1))
    dtype = getattr(torch, spec.precision.compute)
    generator = torch.Generator().manual_seed(seed)
    batch, context = len(workload.rows), workload.rows[0][0]
    moved = bytes_moved(workload, spec)
    copies = max(1, -(-2 * last_level_cache() // int(moved)))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    group = heads.num_q_heads // heads.num_kv_heads
    k, v = (random(copies, batch, heads.num_kv_heads, context, heads.head_dim) for _ in range(2))
    q = random(batch, heads.num_kv_heads, group, heads.head_dim)

    def call(turn: int) -> Tensor:
        return F.scaled_dot_product_attention(q, k[turn % copies], v[turn % copies])

    return Contestant(call, moved, spec)
