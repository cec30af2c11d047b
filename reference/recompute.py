"""The no-cache baseline: a decoder that computes the K/V of every token again at every step, and what a cache saves.

Generating n tokens after a prompt of p takes n steps; step t (from 0) reads a context of p + t tokens. A layer projects

    without a cache    sum_t (p + t) = n p + n (n - 1) / 2     tokens to K and V: quadratic in n
    with one           p + (n - 1)                             tokens: each of them once

and scores, a query at position i seeing i + 1 keys,

    without a cache    sum_t (p + t) (p + t + 1) / 2           query-key pairs: cubic in n
    with one           p (p + 1) / 2 + sum_{t >= 1} (p + t)    pairs: quadratic in n
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.reference.attention import attend_dense


@dataclass(frozen=True)
class Operations:
    """Work of one layer. projections: tokens projected to K and V; pairs: query-key products a query head."""

    projections: int
    pairs: int

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.projections + other.projections, self.pairs + other.pairs)


@dataclass(frozen=True)
class Generation:
    """Generated tokens, the states that they were chosen from (float64 [steps, width]), and a layer's operations."""

    tokens: tuple[int, ...]
    outputs: Tensor
    operations: Operations


@dataclass(frozen=True)
class TinyDecoder:
    """A decoder of attention layers alone: x <- x + W_o attention(W_q x, W_k x, W_v x); the next token is the nearest.

    embedding: [vocabulary, width]; w_q: [layers, num_q_heads, head_dim, width]; w_k, w_v: [layers, num_kv_heads,
    head_dim, width]; w_o: [layers, width, num_q_heads, head_dim].
    """

    embedding: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor

    @property
    def num_layers(self) -> int:
        """Number of attention layers."""
        return len(self.w_q)


Cache = list[tuple[Tensor, Tensor]]
"""K and V of each layer, [n, num_kv_heads, head_dim] each."""


def make_decoder(
    seed: int,
    num_layers: int = 2,
    num_q_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    width: int = 32,
    vocabulary: int = 64,
) -> TinyDecoder:
    """A decoder with random float64 weights, scaled to keep states of order 1."""
    generator = torch.Generator().manual_seed(seed)

    def weights(*shape: int, fan_in: int) -> Tensor:
        values: Tensor = torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
        return values

    return TinyDecoder(
        embedding=weights(vocabulary, width, fan_in=1),
        w_q=weights(num_layers, num_q_heads, head_dim, width, fan_in=width),
        w_k=weights(num_layers, num_kv_heads, head_dim, width, fan_in=width),
        w_v=weights(num_layers, num_kv_heads, head_dim, width, fan_in=width),
        w_o=weights(num_layers, width, num_q_heads, head_dim, fan_in=num_q_heads * head_dim),
    )


def generate_without_cache(model: TinyDecoder, prompt: Sequence[int], steps: int) -> Generation:
    """Generate `steps` tokens after a prompt of one token or more, computing the whole context again for each."""
    return _generate(model, prompt, steps, keep=False)


def generate_with_cache(model: TinyDecoder, prompt: Sequence[int], steps: int) -> Generation:
    """Generate `steps` tokens after a prompt of one token or more, computing each token's K/V once."""
    return _generate(model, prompt, steps, keep=True)


def operations_without_cache(prompt: int, steps: int) -> Operations:
    """What `steps` steps after `prompt` tokens cost a layer when nothing is kept."""
    lengths = range(prompt, prompt + steps)
    return Operations(steps * prompt + steps * (steps - 1) // 2, sum(n * (n + 1) // 2 for n in lengths))


def operations_with_cache(prompt: int, steps: int) -> Operations:
    """What `steps` steps after `prompt` tokens cost a layer when K/V are kept."""
    if steps == 0:
        return Operations(0, 0)
    decoded = steps - 1
    return Operations(prompt + decoded, prompt * (prompt + 1) // 2 + decoded * prompt + decoded * (decoded + 1) // 2)


def _generate(model: TinyDecoder, prompt: Sequence[int], steps: int, keep: bool) -> Generation:
    tokens, operations = list(prompt), Operations(0, 0)
    outputs = model.embedding.new_empty(steps, model.embedding.shape[1])
    cache = _empty(model)
    for step in range(steps):
        if not keep:
            cache = _empty(model)
        cached = len(cache[0][0])
        states, cache = _forward(model, tokens[cached:], cache)
        operations += _count(cached, len(tokens))
        outputs[step] = states[-1]
        tokens.append(int((model.embedding @ states[-1]).argmax()))
    return Generation(tuple(tokens[len(prompt) :]), outputs, operations)


def _empty(model: TinyDecoder) -> Cache:
    return [
        (torch.empty(0, *w.shape[:2], dtype=w.dtype), torch.empty(0, *w.shape[:2], dtype=w.dtype)) for w in model.w_k
    ]


def _forward(model: TinyDecoder, tokens: Sequence[int], cache: Cache) -> tuple[Tensor, Cache]:
    """States [len(tokens), width] of new tokens after those that the cache holds, and the cache with them added."""
    x = model.embedding[list(tokens)]
    grown: Cache = []
    for layer, (k, v) in enumerate(cache):
        q = torch.einsum("tw,hdw->thd", x, model.w_q[layer])
        k = torch.cat([k, torch.einsum("tw,hdw->thd", x, model.w_k[layer])])
        v = torch.cat([v, torch.einsum("tw,hdw->thd", x, model.w_v[layer])])
        out = attend_dense(q, [k], [v], [0, len(tokens)]).out
        x = x + torch.einsum("thd,whd->tw", out, model.w_o[layer])
        grown.append((k, v))
    return x, grown


def _count(cached: int, length: int) -> Operations:
    """What tokens cached..length-1 cost a layer, by counting."""
    new = range(cached, length)
    return Operations(len(new), sum(position + 1 for position in new))


__all__ = [
    "Generation",
    "Operations",
    "TinyDecoder",
    "generate_with_cache",
    "generate_without_cache",
    "make_decoder",
    "operations_with_cache",
    "operations_without_cache",
]
