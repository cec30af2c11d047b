"""Multi-head latent attention: what is cached of a token is one short row that all heads share.

For token j the cache holds [c_j | r_j], the compressed K/V (kv_lora_rank elements) and the rotated part of the key
(rope_dim elements). Head h of query p has q = [q_nope | q_rope], and with W_uk, W_uv the head's up-projections

    k_j = [W_uk c_j | r_j]    v_j = W_uv c_j
    out = sum_j softmax_j(q . k_j / sqrt(nope_dim + rope_dim)) v_j

This is the expanded form: ordinary attention with a K/V head for each query head. Because q_nope . (W_uk c_j) =
(W_uk^T q_nope) . c_j, and W_uv comes out of the sum over j, it equals the absorbed form, with one K/V head for all:

    q' = [W_uk^T q_nope | q_rope]    k'_j = [c_j | r_j]    v'_j = c_j
    out = W_uv sum_j softmax_j(q' . k'_j / sqrt(nope_dim + rope_dim)) v'_j

which reads the cached rows as they are. Source: DeepSeek-V2 report 2024, section 2.1.2 and 2.1.3, appendix C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvbench.interface import AttentionOptions, AttentionResult
from kvbench.reference.attention import PLAIN, attend_dense


def attend_latent(
    q_nope: Tensor,
    q_rope: Tensor,
    rows: Sequence[Tensor],
    w_uk: Tensor,
    w_uv: Tensor,
    query_start_loc: Tensor | Sequence[int],
    options: AttentionOptions = PLAIN,
    dtype: torch.dtype = torch.float64,
) -> AttentionResult:
    """The absorbed form, over cached rows.

    q_nope: [num_tokens, num_q_heads, nope_dim]; q_rope: [num_tokens, num_q_heads, rope_dim]; rows[i]: [seq_len_i,
    kv_lora_rank + rope_dim]; w_uk: [num_q_heads, nope_dim, kv_lora_rank]; w_uv: [num_q_heads, head_dim_v,
    kv_lora_rank]; query_start_loc as in `attend_dense`. Out: [num_tokens, num_q_heads, head_dim_v].
    """
    rank = w_uk.shape[-1]
    absorbed = torch.einsum("thn,hnr->thr", q_nope.to(dtype), w_uk.to(dtype))
    q = torch.cat([absorbed, q_rope.to(dtype)], dim=-1)
    keys = [row[:, None, :] for row in rows]
    values = [row[:, None, :rank] for row in rows]
    latent = attend_dense(q, keys, values, query_start_loc, _with_scale(options, q_nope, q_rope), dtype)
    return replace(latent, out=torch.einsum("thr,hvr->thv", latent.out, w_uv.to(dtype)))


def attend_latent_expanded(
    q_nope: Tensor,
    q_rope: Tensor,
    rows: Sequence[Tensor],
    w_uk: Tensor,
    w_uv: Tensor,
    query_start_loc: Tensor | Sequence[int],
    options: AttentionOptions = PLAIN,
    dtype: torch.dtype = torch.float64,
) -> AttentionResult:
    """The same result by expanding each cached row to K and V of every head. Shapes as in `attend_latent`."""
    num_q_heads, _, rank = w_uk.shape
    keys, values = [], []
    for row in rows:
        latent, rotated = row[:, :rank].to(dtype), row[:, rank:].to(dtype)
        k_nope = torch.einsum("nr,hdr->nhd", latent, w_uk.to(dtype))
        k_rope = rotated[:, None, :].expand(-1, num_q_heads, -1)
        keys.append(torch.cat([k_nope, k_rope], dim=-1))
        values.append(torch.einsum("nr,hvr->nhv", latent, w_uv.to(dtype)))
    q = torch.cat([q_nope, q_rope], dim=-1)
    return attend_dense(q, keys, values, query_start_loc, _with_scale(options, q_nope, q_rope), dtype)


def _with_scale(options: AttentionOptions, q_nope: Tensor, q_rope: Tensor) -> AttentionOptions:
    """Options with the scale of the expanded head, which the absorbed form would not find by itself."""
    if options.scale is not None:
        return options
    return replace(options, scale=(q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5)


__all__ = ["attend_latent", "attend_latent_expanded"]
