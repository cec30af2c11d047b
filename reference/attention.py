"""Attention as it is defined, over sequences of unequal length, in float64.

A row of the batch is one sequence: `seq_len` tokens of context, of which the last `q_len` are asked about. Query i of
the row stands at position p = seq_len - q_len + i and sees the keys at positions j with

    j <= p                      if causal, or if there is a window
    j >  p - window             if there is a window

For each query head, which shares its K/V head with its num_q_heads / num_kv_heads neighbours,

    s_j = softcap * tanh(scale * q . k_j / softcap) + slope * (j - p)
    lse = log(sum_j exp(s_j) + exp(sink))
    out = sum_j exp(s_j - lse) * v_j

where softcap, slope (ALiBi) and sink stand only if the options have them, and j runs over the visible keys. With none,
out is 0 and lse is the sink, or -inf.

Sources: softmax attention and its scale, Vaswani et al. 2017, section 3.2; grouped queries, Ainslie et al. 2023; ALiBi,
Press et al. 2022, section 3; softcap, Gemma 2 report 2024, section 2; sinks, gpt-oss model card 2025, section 2.2.

Evaluated in a narrower `dtype`, the same lines give the error that this data type inherently costs: inputs, scores,
weights and results are rounded to it at every step. Positions and their differences stay exact, as integers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kvbench.errors import InvalidRequest
from kvbench.interface import HOLE, AttentionOptions, AttentionResult

PLAIN = AttentionOptions()
"""Causal attention with the usual scale."""

QUERIES_AT_A_TIME = 256
"""Bounds the memory of scores: a row's queries are answered in pieces of this many."""

Row = tuple[Tensor, Tensor, int]
"""Keys and values of one sequence, [n, num_kv_heads, dim] each, and the position of the first."""


def attend_dense(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    query_start_loc: Tensor | Sequence[int],
    options: AttentionOptions = PLAIN,
    dtype: torch.dtype = torch.float64,
) -> AttentionResult:
    """Attention over the K/V of each row, contiguous.

    q: [num_tokens, num_q_heads, head_dim]; keys[i]: [seq_len_i, num_kv_heads, head_dim]; values[i]: [seq_len_i,
    num_kv_heads, head_dim_v]; row i holds tokens query_start_loc[i]:query_start_loc[i + 1]. Tokens of no row
    have out 0. Out and lse are in `dtype`.
    """
    starts = _integers(query_start_loc)
    value_dim = values[0].shape[-1] if len(values) else q.shape[-1]
    rows = ((k, v, 0) for k, v in zip(keys, values, strict=True))
    return _attend_rows(q, rows, value_dim, starts, options, dtype)


def attend_paged(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor | Sequence[int],
    query_start_loc: Tensor | Sequence[int],
    options: AttentionOptions = PLAIN,
    dtype: torch.dtype = torch.float64,
) -> AttentionResult:
    """Attention over K/V in blocks: position j of row i lies in block block_tables[i, j // block_size].

    q: [num_tokens, num_q_heads, head_dim]; key_cache: [num_blocks, block_size, num_kv_heads, head_dim]; value_cache:
    [num_blocks, block_size, num_kv_heads, head_dim_v]; block_tables: [num_seqs, max_blocks]; seq_lens: [num_seqs].
    Only slots that some query of the row sees are read. Raises `InvalidRequest` if one of these is in no block of the
    pool.
    """
    starts, lengths = _integers(query_start_loc), _integers(seq_lens)

    def rows() -> Iterator[Row]:
        for row, seq_len in enumerate(lengths):
            first = first_visible(seq_len, starts[row + 1] - starts[row], options)
            blocks, offsets = _locate(block_tables[row], first, seq_len, key_cache.shape[:2])
            yield key_cache[blocks, offsets], value_cache[blocks, offsets], first

    return _attend_rows(q, rows(), value_cache.shape[-1], starts, options, dtype)


def first_visible(seq_len: int, q_len: int, options: AttentionOptions) -> int:
    """The lowest position that any of the last `q_len` queries of a row sees; `seq_len` if there is no query."""
    if q_len == 0:
        return seq_len
    if options.window is None:
        return 0
    return min(seq_len, max(0, seq_len - q_len - options.window + 1))


def check_options(options: AttentionOptions, num_q_heads: int) -> None:
    """Raise `InvalidRequest` for options that define no attention."""
    if options.window is not None and options.window < 1:
        raise InvalidRequest(f"window {options.window}: a query sees at least itself; give 1 or more, or None")
    if options.softcap is not None and not options.softcap > 0:
        raise InvalidRequest(f"softcap {options.softcap}: give a positive number, or None for no cap")
    for name, per_head in (("alibi_slopes", options.alibi_slopes), ("sinks", options.sinks)):
        if per_head is not None and len(per_head) != num_q_heads:
            raise InvalidRequest(f"{len(per_head)} {name} for {num_q_heads} query heads: give one a query head")


def _integers(numbers: Tensor | Sequence[int]) -> list[int]:
    return [int(n) for n in numbers]


def _locate(table: Tensor, first: int, end: int, pool: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Block ids and offsets of positions first..end-1 of a row, for a pool of (num_blocks, block_size)."""
    num_blocks, block_size = pool
    if -(-end // block_size) > len(table):
        raise InvalidRequest(
            f"a context of {end} tokens needs {-(-end // block_size)} blocks of {block_size}, "
            f"the block table has {len(table)} columns: widen the table or shorten the context"
        )
    positions = torch.arange(first, end, device=table.device)
    blocks = table[positions // block_size].long()
    outside = blocks[(blocks < 0) | (blocks >= num_blocks)]
    if len(outside):
        found = int(outside[0])
        name = "a hole" if found == HOLE else f"block {found}"
        raise InvalidRequest(
            f"{name} stands in the block table where a query looks: visible blocks must be in 0..{num_blocks - 1}"
        )
    return blocks, positions % block_size


def _attend_rows(
    q: Tensor,
    rows: Iterator[Row],
    value_dim: int,
    starts: Sequence[int],
    options: AttentionOptions,
    dtype: torch.dtype,
) -> AttentionResult:
    """The core that both entry points share: row by row, and within a row in pieces of queries."""
    num_tokens, num_q_heads, _ = q.shape
    check_options(options, num_q_heads)
    unseen = _per_head(options.sinks or [-torch.inf] * num_q_heads, q.device)
    out = torch.zeros(num_tokens, num_q_heads, value_dim, dtype=dtype, device=q.device)
    lse = unseen.to(out).repeat(num_tokens, 1)
    for row, (k, v, first) in enumerate(rows):
        begin, end = starts[row], starts[row + 1]
        if len(k) == 0:
            continue
        k, v = k.to(dtype), v.to(dtype)
        position_of_token_0 = first + len(k) - end
        for piece in range(begin, end, QUERIES_AT_A_TIME):
            tokens = slice(piece, min(piece + QUERIES_AT_A_TIME, end))
            query_positions = position_of_token_0 + torch.arange(tokens.start, tokens.stop, device=q.device)
            key_positions = first + torch.arange(len(k), device=q.device)
            distance = key_positions[None, :] - query_positions[:, None]
            out[tokens], lse[tokens] = _attend(q[tokens].to(dtype), k, v, distance, options)
    return AttentionResult(out, lse)


def _attend(q: Tensor, k: Tensor, v: Tensor, distance: Tensor, options: AttentionOptions) -> tuple[Tensor, Tensor]:
    """The recurrence at the head of this file, for some queries of one row.

    q: [q_len, num_q_heads, head_dim]; k, v: [n, num_kv_heads, dim]; distance: key position - query position,
    [q_len, n]. Returns out [q_len, num_q_heads, head_dim_v] and lse [q_len, num_q_heads].
    """
    q_len, num_q_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    ratio, left = divmod(num_q_heads, num_kv_heads)
    if left:
        raise InvalidRequest(f"{num_q_heads} query heads cannot share {num_kv_heads} K/V heads evenly")
    visible = _visible(distance, options)
    v = v.masked_fill(~visible.any(0)[:, None, None], 0)  # weight 0 times NaN would be NaN

    # Indices below: q query, j key, h K/V head, g query head of its group, d element.
    scale = head_dim**-0.5 if options.scale is None else options.scale
    groups = (q * scale).view(q_len, num_kv_heads, ratio, head_dim)
    scores = torch.einsum("qhgd,jhd->qhgj", groups, k).flatten(1, 2)
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if options.alibi_slopes is not None:
        slopes = _per_head(options.alibi_slopes, q.device)
        scores = scores + (slopes[:, None] * distance[:, None, :]).to(scores)
    scores = scores.masked_fill(~visible[:, None, :], -torch.inf)

    sinks = None if options.sinks is None else _per_head(options.sinks, q.device).to(scores).expand(q_len, -1)
    weights, lse = _softmax(scores, sinks)
    groups = weights.view(q_len, num_kv_heads, ratio, num_keys)
    return torch.einsum("qhgj,jhd->qhgd", groups, v).flatten(1, 2), lse


def _per_head(numbers: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _visible(distance: Tensor, options: AttentionOptions) -> Tensor:
    """Which keys each query sees, given key position - query position."""
    visible = torch.ones_like(distance, dtype=torch.bool)
    if options.causal or options.window is not None:
        visible &= distance <= 0
    if options.window is not None:
        visible &= distance > -options.window
    return visible


def _softmax(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights [..., n] and log-sum-exp [...] of scores [..., n], n > 0, with a logit more in the sum: sinks [...]."""
    logits = scores if sinks is None else torch.cat([scores, sinks[..., None]], dim=-1)
    largest = logits.amax(-1, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0)  # nothing visible: exp(-inf - 0) = 0
    total = torch.exp(logits - largest).sum(-1, keepdim=True)
    weights = torch.exp(scores - largest) / total.masked_fill(total == 0, 1)
    return weights, (largest + total.log()).squeeze(-1)


__all__ = ["PLAIN", "attend_dense", "attend_paged", "check_options", "first_visible"]
