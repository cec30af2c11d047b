"""The workloads that kernels are timed on: what is in the batch, and how many bytes must move for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.interface import NO_SLOT, Batch, CacheSpec, Precision

BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "uint8": 8, "int8": 8, "uint4": 4}
"""Bits of a cached element, scales apart. One-byte floats count 8."""

SCALE_BYTES = 8
"""Scale and zero point of one group of integer codes, as two float32."""


@dataclass(frozen=True)
class Heads:
    """Attention shape of one layer of a model."""

    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128


@dataclass(frozen=True)
class Workload:
    """One timed call. rows: (tokens of context, new tokens included; new tokens) of each sequence."""

    name: str
    rows: tuple[tuple[int, int], ...]

    @property
    def new_tokens(self) -> int:
        """Tokens that the call computes."""
        return sum(new for _, new in self.rows)

    @property
    def context(self) -> int:
        """Tokens of K/V that the call reads at least once."""
        return sum(context for context, _ in self.rows)

    def slots(self, block_size: int) -> int:
        """Blocks that the rows occupy."""
        return sum(-(-context // block_size) for context, _ in self.rows)


def workloads(quick: bool) -> list[Workload]:
    """Decode, prefill and a mixed batch; smaller ones for a quick look."""
    batch, context, chunk = (4, 1024, 256) if quick else (8, 4096, 512)
    return [
        Workload("decode", ((context, 1),) * batch),
        Workload("prefill", ((2 * chunk, 2 * chunk),)),
        Workload("mixed", ((context, chunk), *((context, 1),) * (batch - 1))),
    ]


def bytes_per_token(spec: CacheSpec) -> float:
    """Bytes of K and V that one cached token takes in one layer, with the scales of integer codes."""
    per_head = (spec.head_dim + spec.value_dim) * BITS.get(spec.precision.storage, 8) / 8
    if spec.precision.quantised:
        group = spec.precision.quant_group
        groups = 2 if group is None else -(-spec.head_dim // group) + -(-spec.value_dim // group)
        per_head += groups * SCALE_BYTES
    return spec.num_kv_heads * per_head


def bytes_moved(workload: Workload, spec: CacheSpec) -> float:
    """Bytes that no implementation can avoid moving: K/V of all contexts once, new K/V, queries and outputs."""
    element = BITS[spec.precision.compute] / 8
    activations = workload.new_tokens * spec.num_q_heads * (spec.head_dim + spec.value_dim) * element
    new_kv = workload.new_tokens * spec.num_kv_heads * (spec.head_dim + spec.value_dim) * element
    return workload.context * bytes_per_token(spec) + activations + new_kv


def tables(workload: Workload, block_size: int, first: int, order: Tensor) -> Tensor:
    """Block tables of the rows, int32 [rows, widest], out of the shuffled block ids order[first:]."""
    widths = [-(-context // block_size) for context, _ in workload.rows]
    table = torch.zeros(len(widths), max(widths), dtype=torch.int32)
    for row, width in enumerate(widths):
        table[row, :width] = order[first : first + width]
        first += width
    return table


def batch_of(rows: Sequence[tuple[int, int]], table: Tensor, spec: CacheSpec, generator: torch.Generator) -> Batch:
    """A batch with random q, k and v for rows of (context, new tokens) whose blocks are given."""
    dtype = getattr(torch, spec.precision.compute)
    new = torch.tensor([tokens for _, tokens in rows])
    lens = torch.tensor([context for context, _ in rows], dtype=torch.int32)
    starts = torch.zeros(len(rows) + 1, dtype=torch.int32)
    starts[1:] = new.cumsum(0)
    total = int(starts[-1])

    def random(heads: int, dim: int) -> Tensor:
        return torch.randn(total, heads, dim, generator=generator).to(dtype)

    return Batch(
        q=random(spec.num_q_heads, spec.head_dim),
        k=random(spec.num_kv_heads, spec.head_dim),
        v=random(spec.num_kv_heads, spec.value_dim),
        block_tables=table,
        seq_lens=lens,
        query_start_loc=starts,
        slot_mapping=_slots(rows, table, spec.block_size),
    )


def _slots(rows: Sequence[tuple[int, int]], table: Tensor, block_size: int) -> Tensor:
    parts = []
    for row, (context, new) in enumerate(rows):
        positions = torch.arange(context - new, context)
        parts.append(table[row, positions // block_size].long() * block_size + positions % block_size)
    return torch.cat(parts) if parts else torch.full((0,), NO_SLOT)


def spec_for(heads: Heads, precision: Precision, block_size: int) -> CacheSpec:
    """The cache of one layer with these heads."""
    return CacheSpec(heads.num_q_heads, heads.num_kv_heads, heads.head_dim, block_size, precision)
