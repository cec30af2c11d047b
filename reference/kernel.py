"""The attention kernel that is right by construction: plain caches, every argument checked, float64 arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvbench.errors import Unsupported
from kvbench.interface import NO_SLOT, AttentionResult, Batch, CacheManager, CacheSpec
from kvbench.reference import requests
from kvbench.reference.attention import attend_paged

FLOATS = ("float64", "float32", "bfloat16", "float16")
"""The dtypes that q, k, v and out may have, and in which K/V may rest."""


@dataclass(frozen=True)
class ReferenceCache:
    """K and V of each layer, [num_blocks, block_size, num_kv_heads, dim], in the precision's storage dtype.

    Rows that were never written hold NaN, so that reading one shows.
    """

    spec: CacheSpec
    num_blocks: int
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class ReferenceKernel:
    """Implements `AttentionKernel` and the operations write, attend, copy_blocks and plan, with all options."""

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> ReferenceCache:
        """A cache of `num_blocks` unwritten blocks. Raises `Unsupported` for storage that is not floating-point."""
        requests.check_spec(spec, num_blocks)
        for dtype in (spec.precision.compute, spec.precision.storage):
            if dtype not in FLOATS:
                raise Unsupported(f"precision {spec.precision.name}: {dtype} is not one of {', '.join(FLOATS)}")
        storage = getattr(torch, spec.precision.storage)

        def unwritten(dim: int) -> tuple[Tensor, ...]:
            shape = (num_blocks, spec.block_size, spec.num_kv_heads, dim)
            return tuple(
                torch.full(shape, torch.nan, dtype=storage, device=spec.device) for _ in range(spec.num_layers)
            )

        return ReferenceCache(spec, num_blocks, unwritten(spec.head_dim), unwritten(spec.value_dim))

    def forward(self, cache: ReferenceCache, batch: Batch) -> AttentionResult:
        requests.check_forward(cache.spec, cache.num_blocks, batch)
        self.write(cache, batch.k, batch.v, batch.slot_mapping, batch.layer)
        return self.attend(cache, batch)

    def write(self, cache: ReferenceCache, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        requests.check_write(cache.spec, cache.num_blocks, k, v, slot_mapping, layer)
        tokens = (slot_mapping != NO_SLOT).nonzero().flatten()
        blocks, offsets = slot_mapping[tokens] // cache.spec.block_size, slot_mapping[tokens] % cache.spec.block_size
        cache.keys[layer][blocks, offsets] = k[tokens].to(cache.keys[layer])
        cache.values[layer][blocks, offsets] = v[tokens].to(cache.values[layer])

    def attend(self, cache: ReferenceCache, batch: Batch) -> AttentionResult:
        requests.check_attend(cache.spec, cache.num_blocks, batch)
        exact = attend_paged(
            batch.q,
            cache.keys[batch.layer],
            cache.values[batch.layer],
            batch.block_tables,
            batch.seq_lens,
            batch.query_start_loc,
            batch.options,
        )
        return AttentionResult(exact.out.to(batch.q.dtype), exact.lse)

    def copy_blocks(self, cache: ReferenceCache, pairs: Sequence[tuple[int, int]]) -> None:
        requests.check_copies(cache.num_blocks, pairs)
        for source, target in pairs:
            for layer in (*cache.keys, *cache.values):
                layer[target] = layer[source]

    def plan(self, cache: ReferenceCache, batch: Batch) -> Callable[[], AttentionResult]:
        requests.check_forward(cache.spec, cache.num_blocks, batch)
        return partial(self.forward, cache, batch)


__all__ = ["ReferenceCache", "ReferenceKernel"]
