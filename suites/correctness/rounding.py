"""What attention should give, and how far a precision may be off.

The expectation is float64 on the numbers that were handed to the kernel. How far off is what the precision inherently
costs, measured on the same numbers: a dense evaluation in its arithmetic over K/V that rested in its storage, and
float64 evaluations in which every rounding of such an evaluation (scores, weights, stored elements, the result) is
replaced by a random one of the same size, so that a lucky rounding does not set the bar.

A kernel passes if its errors look drawn from errors of that size: no single element is improbably far off, and the
root mean square of all is not improbably large. `CHANCE` is the only level; there is no tolerance a test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.interface import AttentionOptions, AttentionResult, CacheSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHANCE = 1e-8
"""How improbable an error must be before it counts as a fault."""

SAMPLES = 6
"""Random roundings that the size of errors is estimated from; a third of them for batches of over `LARGE` scores."""

LARGE = 300_000

MODEL_ERROR = 1.3
"""By how much the estimated size of errors may itself be too small: from few samples, for another order of sums."""


@dataclass(frozen=True)
class Expected:
    """out: float64 [num_tokens, num_q_heads, head_dim_v]; out_size: root mean square of its errors, per token and head.

    lse, lse_size: [num_tokens, num_q_heads]. floor: what float32 sums cost anywhere. draws: how many independent errors
    there are at least.
    """

    out: Tensor
    out_size: Tensor
    lse: Tensor
    lse_size: Tensor
    floor: float
    draws: int


@dataclass(frozen=True)
class Mismatch:
    """Where a result is furthest from what it should be, in words."""

    token: int
    head: int
    words: str


def expect(
    spec: CacheSpec,
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    options: AttentionOptions,
    seed: int = 0,
) -> Expected:
    """Attention of rows with queries q[i] over k[i] and v[i], context and new tokens together."""
    import torch

    from kvbench.reference.attention import attend_dense
    from kvbench.reference.quantise import round_trip

    starts = [0]
    for queries in q:
        starts.append(starts[-1] + len(queries))
    if not q:
        return _nothing(spec)
    packed = torch.cat([*q])
    exact = attend_dense(packed.double(), [x.double() for x in k], [x.double() for x in v], starts, options)
    stored_k = [round_trip(x, spec.precision) for x in k]
    stored_v = [round_trip(x, spec.precision) for x in v]
    arithmetic: torch.dtype = getattr(torch, spec.precision.arithmetic or spec.precision.compute)
    noise = _Noise(torch.finfo(arithmetic).eps / 2, spec, seed)
    out_squares, lse_squares = torch.zeros_like(exact.out), torch.zeros_like(exact.out[..., 0])
    scores = spec.num_q_heads * sum(len(queries) * len(keys) for queries, keys in zip(q, k, strict=True))
    samples = SAMPLES if scores <= LARGE else SAMPLES // 3
    for _ in range(samples):
        noisy = attend_dense(
            noise.elements(packed.double()),
            [noise.summed(noise.rows(noise.stored(x, y))) for x, y in zip(k, stored_k, strict=True)],
            [noise.rows(noise.stored(x, y)) for x, y in zip(v, stored_v, strict=True)],
            starts,
            options,
        )
        out_squares += (noisy.out - exact.out).square() / samples
        lse_squares += _difference(noisy.lse, exact.lse).square() / samples
    dense = attend_dense(packed, stored_k, stored_v, starts, options, dtype=arithmetic)
    dense_squares = (dense.out.double() - exact.out).square().nan_to_num(0, 0, 0)
    final = torch.finfo(getattr(torch, spec.precision.compute)).eps / 2
    out_squares = out_squares.mean(-1).maximum(dense_squares.mean(-1)) + (final * exact.out).square().mean(-1) / 3
    assert exact.lse is not None
    largest = max((float(x.abs().max()) for x in v if x.numel()), default=0.0)
    return Expected(
        out=exact.out,
        out_size=out_squares.sqrt(),
        lse=exact.lse,
        lse_size=lse_squares.sqrt(),
        floor=_floor(arithmetic, options, max(map(len, k), default=0)) * max(largest, 1.0),
        draws=max(1, sum(1 for x in q if len(x)) * spec.num_q_heads),
    )


def _nothing(spec: CacheSpec) -> Expected:
    """What a batch without rows gets."""
    import torch

    out = torch.zeros(0, spec.num_q_heads, spec.value_dim, dtype=torch.float64)
    lse = out.new_zeros(0, spec.num_q_heads)
    return Expected(out, out.new_zeros(lse.shape), lse, lse, 0.0, 1)


class _Noise:
    """Random roundings, each up to `unit` of the number that is rounded."""

    def __init__(self, unit: float, spec: CacheSpec, seed: int) -> None:
        import torch

        self.unit = unit
        # A dot product of n terms in float32 rounds n partial sums, the last ones as large as the result or larger.
        self.sums = unit if spec.precision.compute == "float64" else 2.0**-24
        self.sums *= (spec.head_dim / 2) ** 0.5
        self.narrower = spec.precision.arithmetic not in (None, spec.precision.compute)
        self.generator = torch.Generator().manual_seed(seed + 17)

    def _uniform(self, like: Tensor) -> Tensor:
        import torch

        return (2 * torch.rand(like.shape, generator=self.generator, dtype=torch.float64) - 1).to(like.device)

    def elements(self, x: Tensor) -> Tensor:
        """Every element rounded on its own."""
        return x * (1 + self.unit * self._uniform(x))

    def rows(self, x: Tensor) -> Tensor:
        """Every row [head_dim] scaled by one rounding: what rounding a score or a weight does."""
        x = self.elements(x) if self.narrower else x
        return x * (1 + self.unit * self._uniform(x[..., :1]))

    def summed(self, x: Tensor) -> Tensor:
        """Every element of K off by as much as summing a dot product over it costs."""
        return x * (1 + self.sums * self._uniform(x))

    def stored(self, x: Tensor, stored: Tensor) -> Tensor:
        """Off by as much as storage makes it, in a random direction."""
        return x.double() + (stored - x.double()) * self._uniform(stored).sign()


def _floor(arithmetic: torch.dtype, options: AttentionOptions, longest: int) -> float:
    """What sums, exponentials and biases in float32 cost relative to the largest value, whatever the precision."""
    import torch

    eps = torch.finfo(torch.float64 if arithmetic == torch.float64 else torch.float32).eps
    bias = max((abs(slope) for slope in options.alibi_slopes or ()), default=0.0) * longest
    return float(eps) * (8 + math.sqrt(longest) + bias + (options.softcap or 0.0))


def _difference(a: Tensor | None, b: Tensor | None) -> Tensor:
    """a - b, 0 where both are the same infinity."""
    assert a is not None
    assert b is not None
    a, b = a.double(), b.double()
    return (a - b).masked_fill(a == b, 0)


def _factor(chance: float, draws: int) -> float:
    """How much larger than its expectation the root mean square of `draws` errors is with probability `chance`."""
    from scipy.special import chdtri  # the inverse of chi-square's tail; scipy.stats takes seconds to import

    return MODEL_ERROR * math.sqrt(float(chdtri(draws, chance)) / draws)


def mismatch(result: AttentionResult, expected: Expected, wants_lse: bool = False) -> Mismatch | None:
    """Why `result` is not what attention gives within its precision, or None."""
    if tuple(result.out.shape) != tuple(expected.out.shape):
        return Mismatch(0, 0, f"out has shape {list(result.out.shape)}, should be {list(expected.out.shape)}")
    out = result.out.detach().double()
    if (found := _compare("out", out, expected.out, expected.out_size[..., None], expected)) is not None:
        return found
    if not wants_lse:
        return None
    if result.lse is None:
        return Mismatch(0, 0, "no lse came back although it is declared")
    if tuple(result.lse.shape) != tuple(expected.lse.shape):
        return Mismatch(0, 0, f"lse has shape {list(result.lse.shape)}, should be {list(expected.lse.shape)}")
    size = expected.lse_size + 1.2e-7 * expected.lse.abs().nan_to_num(0, 0, 0)
    return _compare("lse", result.lse.detach().double()[..., None], expected.lse[..., None], size[..., None], expected)


def _compare(what: str, found: Tensor, right: Tensor, size: Tensor, expected: Expected) -> Mismatch | None:
    """found, right: [num_tokens, num_q_heads, n]; size: broadcastable against them."""
    if found.numel() == 0:
        return None
    error = _difference(found, right).abs()
    error = error.nan_to_num(math.inf, math.inf, math.inf)
    allowed = _factor(CHANCE / error.numel(), 1) * size + expected.floor
    excess = error / allowed
    worst = int(excess.argmax())
    token, rest = divmod(worst, error[0].numel())
    head, element = divmod(rest, error.shape[-1])
    place = f"[{element}]" if what == "out" else ""
    if float(excess.flatten()[worst]) > 1:
        return Mismatch(
            token,
            head,
            f"{what}{place} is {float(found[token, head, element]):.6g}, "
            f"should be {float(right[token, head, element]):.6g}; "
            f"the precision accounts for {float(allowed.expand_as(error).flatten()[worst]):.2g}",
        )
    typical = math.sqrt(float(size.square().mean()))
    root_mean_square = math.sqrt(float(error.square().mean()))
    if root_mean_square > (bound := _factor(CHANCE, expected.draws) * typical + expected.floor):
        return Mismatch(
            token,
            head,
            f"the errors of {what} have root mean square {root_mean_square:.3g}; "
            f"the precision accounts for {typical:.3g}, by chance for {bound:.3g}",
        )
    return None
