"""What a kernel's arguments must satisfy, checked before anything is touched: a refused call changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvbench.errors import InvalidRequest
from kvbench.interface import HOLE, NO_SLOT, Batch, CacheSpec
from kvbench.reference.attention import check_options


def check_spec(spec: CacheSpec, num_blocks: int) -> None:
    """Raise `InvalidRequest` for a cache that cannot exist."""
    sizes = {
        "num_q_heads": spec.num_q_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "head_dim_v": spec.value_dim,
        "block_size": spec.block_size,
        "num_layers": spec.num_layers,
    }
    for name, size in sizes.items():
        if size < 1:
            raise InvalidRequest(f"{name} {size}: give 1 or more")
    if num_blocks < 0:
        raise InvalidRequest(f"num_blocks {num_blocks}: give 0 or more")
    if spec.num_q_heads % spec.num_kv_heads:
        raise InvalidRequest(
            f"{spec.num_q_heads} query heads cannot share {spec.num_kv_heads} K/V heads evenly: give a multiple"
        )


def check_write(spec: CacheSpec, num_blocks: int, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int) -> None:
    """Raise `InvalidRequest` unless k and v can be written at these slots."""
    compute = getattr(torch, spec.precision.compute)
    num_tokens = k.shape[0] if k.dim() else 0
    _check_tensor("k", k, compute, (num_tokens, spec.num_kv_heads, spec.head_dim))
    _check_tensor("v", v, compute, (num_tokens, spec.num_kv_heads, spec.value_dim))
    _check_layer(spec, layer)
    if slot_mapping.dtype != torch.int64 or slot_mapping.dim() != 1 or len(slot_mapping) > num_tokens:
        raise InvalidRequest(
            f"slot_mapping is {_describe(slot_mapping)}: expected torch.int64 [{num_tokens}], or shorter if the rest "
            "of the tokens is padding"
        )
    num_slots = num_blocks * spec.block_size
    outside = slot_mapping[((slot_mapping < 0) & (slot_mapping != NO_SLOT)) | (slot_mapping >= num_slots)]
    if len(outside):
        raise InvalidRequest(
            f"slot {int(outside[0])} is outside the pool: slots must be in 0..{num_slots - 1}, or {NO_SLOT} for padding"
        )


def check_attend(spec: CacheSpec, num_blocks: int, batch: Batch) -> None:
    """Raise `InvalidRequest` unless the batch's queries can be answered from a cache of this spec."""
    compute = getattr(torch, spec.precision.compute)
    num_tokens = batch.q.shape[0] if batch.q.dim() else 0
    _check_tensor("q", batch.q, compute, (num_tokens, spec.num_q_heads, spec.head_dim))
    _check_layer(spec, batch.layer)
    check_options(batch.options, spec.num_q_heads)
    _check_rows(batch, num_tokens)
    _check_tables(spec, num_blocks, batch)


def check_forward(spec: CacheSpec, num_blocks: int, batch: Batch) -> None:
    """Raise `InvalidRequest` unless the batch can be written and answered."""
    check_attend(spec, num_blocks, batch)
    check_write(spec, num_blocks, batch.k, batch.v, batch.slot_mapping, batch.layer)
    num_tokens = len(batch.q)
    if len(batch.k) != num_tokens or len(batch.slot_mapping) != num_tokens:
        raise InvalidRequest(
            f"{num_tokens} tokens in q, {len(batch.k)} in k and v, {len(batch.slot_mapping)} in slot_mapping: "
            "a batch has as many of each"
        )
    _check_holes(spec, batch)


def check_copies(num_blocks: int, pairs: Sequence[tuple[int, int]]) -> None:
    """Raise `InvalidRequest` if a block to copy is outside the pool."""
    for pair in pairs:
        for block in pair:
            if not 0 <= block < num_blocks:
                raise InvalidRequest(f"copy {tuple(pair)}: block {block} is outside the pool, 0..{num_blocks - 1}")


def _check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise InvalidRequest(f"{name} is {_describe(tensor)}: expected {dtype} {list(shape)}")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _check_layer(spec: CacheSpec, layer: int) -> None:
    if not 0 <= layer < spec.num_layers:
        raise InvalidRequest(f"layer {layer}: the cache has layers 0..{spec.num_layers - 1}")


def _check_rows(batch: Batch, num_tokens: int) -> None:
    num_seqs = len(batch.seq_lens) if batch.seq_lens.dim() else 0
    columns = batch.block_tables.shape[1] if batch.block_tables.dim() == 2 else 0
    _check_tensor("seq_lens", batch.seq_lens, torch.int32, (num_seqs,))
    _check_tensor("query_start_loc", batch.query_start_loc, torch.int32, (num_seqs + 1,))
    _check_tensor("block_tables", batch.block_tables, torch.int32, (num_seqs, columns))
    starts = batch.query_start_loc.tolist()
    if starts[0] != 0 or starts != sorted(starts) or starts[-1] > num_tokens:
        raise InvalidRequest(
            f"query_start_loc {starts}: it must begin with 0, never decrease and end by {num_tokens}, the tokens of q"
        )
    if num_seqs and int(batch.seq_lens.min()) < 0:
        raise InvalidRequest(f"seq_lens {batch.seq_lens.tolist()}: a length cannot be negative")


def _check_tables(spec: CacheSpec, num_blocks: int, batch: Batch) -> None:
    """Each block of a row's context is in the pool, or a hole that no query of the row looks into."""
    tables, lengths = batch.block_tables.long(), batch.seq_lens.long()[:, None]
    needed = -(-lengths // spec.block_size)
    short = (needed > tables.shape[1]).flatten().nonzero()
    if len(short):
        row = int(short[0])
        raise InvalidRequest(
            f"row {row}: {int(lengths[row])} tokens need {int(needed[row])} blocks of {spec.block_size}, "
            f"block_tables has {tables.shape[1]} columns: widen the table or shorten the context"
        )
    columns = torch.arange(tables.shape[1], device=tables.device)
    behind = (columns + 1) * spec.block_size <= _first_visible(batch)[:, None]
    legal = ((tables >= 0) & (tables < num_blocks)) | ((tables == HOLE) & behind)
    wrong = ((columns < needed) & ~legal).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise InvalidRequest(
            f"row {row}: block_tables[{row}, {column}] is {int(tables[row, column])}: the {int(needed[row])} blocks of "
            f"its context must be in 0..{num_blocks - 1}, or {HOLE} where a window has left them behind"
        )


def _first_visible(batch: Batch) -> Tensor:
    """The lowest position that any query of each row sees, [num_seqs]: `attention.first_visible` for all rows."""
    lengths, q_lens = batch.seq_lens.long(), batch.query_start_loc.long().diff()
    if batch.options.window is None:
        return torch.where(q_lens == 0, lengths, 0)
    first = (lengths - q_lens - batch.options.window + 1).clamp(min=0).minimum(lengths)
    return torch.where(q_lens == 0, lengths, first)


def _check_holes(spec: CacheSpec, batch: Batch) -> None:
    """No token is written where its row's table has no block."""
    q_lens = batch.query_start_loc.long().diff()
    row = torch.repeat_interleave(torch.arange(len(q_lens), device=q_lens.device), q_lens)
    token = torch.arange(len(row), device=row.device)
    position = token - (batch.query_start_loc[1:] - batch.seq_lens).long()[row]
    written = batch.slot_mapping[: len(row)] != NO_SLOT
    before = written & (position < 0)
    if before.any():
        at = int(before.nonzero()[0])
        raise InvalidRequest(
            f"token {at} has a slot but stands {-int(position[at])} before the start of row {int(row[at])}'s context: "
            f"give it {NO_SLOT} or a longer seq_len"
        )
    row, position, token = row[written], position[written], token[written]
    hole = (batch.block_tables[row, position // spec.block_size] == HOLE).nonzero()
    if len(hole):
        at = int(hole[0])
        raise InvalidRequest(
            f"token {int(token[at])} would be written into a hole: block_tables[{int(row[at])}, "
            f"{int(position[at]) // spec.block_size}] is {HOLE}; give it {NO_SLOT} or a block"
        )


__all__ = ["check_attend", "check_copies", "check_forward", "check_spec", "check_write"]
