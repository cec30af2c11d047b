"""What K/V become by resting in a cache: the error model of a `Precision`.

Floating-point storage rounds to nearest, ties to even. Integer storage keeps, for each token and head and group of
`quant_group` elements x, a scale and (unsigned codes) a zero point:

    unsigned, b bits    scale = (max x - min x) / (2^b - 1)    zero = -min x / scale    code = round(x / scale + zero)
    int8                scale = max |x| / 127                  zero = 0                 code = round(x / scale)

and gives back (code - zero) * scale, at most scale / 2 away from x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvbench.errors import InvalidRequest, Unsupported
from kvbench.interface import Precision

_UNSIGNED_BITS = {"uint8": 8, "uint4": 4}


def round_trip(x: Tensor, precision: Precision) -> Tensor:
    """K or V as a cache of this precision gives them back, in float64.

    x: [..., head_dim], rounded to `precision.compute` first, since this is how it reaches the cache. Raises
    `InvalidRequest` if quant_group does not divide head_dim, `Unsupported` for a storage that is not known here.
    """
    x = x.to(_torch_dtype(precision.compute))
    if not precision.quantised:
        return x.to(_torch_dtype(precision.storage)).double()
    head_dim = x.shape[-1]
    size = head_dim if precision.quant_group is None else precision.quant_group
    if head_dim % size:
        raise InvalidRequest(f"quant_group {size} does not divide head_dim {head_dim}")
    groups = x.double().reshape(*x.shape[:-1], head_dim // size, size)
    if precision.storage in _UNSIGNED_BITS:
        return _unsigned(groups, 2 ** _UNSIGNED_BITS[precision.storage] - 1).flatten(-2)
    return _signed(groups).flatten(-2)


def _unsigned(groups: Tensor, levels: int) -> Tensor:
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = _positive((high - low) / levels)
    zero = -low / scale
    return ((groups / scale + zero).round().clamp(0, levels) - zero) * scale


def _signed(groups: Tensor) -> Tensor:
    scale = _positive(groups.abs().amax(-1, keepdim=True) / 127)
    return (groups / scale).round().clamp(-127, 127) * scale


def _positive(scale: Tensor) -> Tensor:
    """A group of equal numbers has range 0; any scale gives it back exactly."""
    return scale.masked_fill(scale == 0, 1)


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise Unsupported(f"{name!r} is neither a floating-point torch dtype nor uint8, int8 or uint4")
    return dtype


__all__ = ["round_trip"]
