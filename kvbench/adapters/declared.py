"""What an adapter declares, held against what it is asked: an engine is not given what its adapter does not offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import Unsupported
from kvbench.interface import NO_SLOT, AttentionOptions, CacheSpec, KernelCapabilities, KernelOption, PoolSpec

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.interface import Batch


def check_cache(declared: KernelCapabilities, spec: CacheSpec) -> None:
    """Raise `Unsupported` for a cache outside `declared`."""
    if spec.precision not in declared.precisions:
        known = ", ".join(precision.name for precision in declared.precisions)
        raise Unsupported(f"precision {spec.precision.name!r} is not one of {known}")
    if spec.device not in declared.devices:
        raise Unsupported(f"device {spec.device!r} is not one of {', '.join(declared.devices)}")
    if spec.value_dim != spec.head_dim and not declared.separate_value_dim:
        raise Unsupported(f"head_dim_v {spec.value_dim} must equal head_dim {spec.head_dim}")
    ratio = spec.num_q_heads // spec.num_kv_heads
    for name, size, allowed in (
        ("block_size", spec.block_size, declared.block_sizes),
        ("head_dim", spec.head_dim, declared.head_dims),
        ("head_dim_v", spec.value_dim, declared.head_dims),
        ("query heads per KV head", ratio, declared.gqa_ratios),
    ):
        if size not in allowed:
            raise Unsupported(f"{name} {size} is not among {allowed}")


def check_options(declared: KernelCapabilities, options: AttentionOptions) -> None:
    """Raise `Unsupported` for an option outside `declared`."""
    asked: dict[KernelOption, bool] = {
        "scale": options.scale is not None,
        "non_causal": not options.causal and options.window is None,
        "window": options.window is not None,
        "softcap": options.softcap is not None,
        "alibi": options.alibi_slopes is not None,
        "sinks": options.sinks is not None,
    }
    for option, wanted in asked.items():
        if wanted and option not in declared.options:
            offered = ", ".join(sorted(declared.options)) or "none"
            raise Unsupported(f"option {option} is not offered; offered: {offered}")


def check_positions(batch: Batch, block_size: int) -> None:
    """Raise `Unsupported` for a token that is to be written elsewhere than its position says, where the engine writes.

    Where a row's table has a hole, or ends, nothing is said: the engine is asked.
    """
    slots = batch.slot_mapping[: int(batch.query_start_loc[-1])]
    implied = slots_by_position(batch, block_size)
    wrong = ((implied >= 0) & (slots != implied) & (slots != NO_SLOT)).nonzero()
    if len(wrong):
        token = int(wrong[0])
        raise Unsupported(
            f"token {token} is to be written to slot {int(slots[token])}: this engine writes where the token's "
            f"position says, slot {int(implied[token])}"
        )


def slots_by_position(batch: Batch, block_size: int) -> Tensor:
    """The slot of each token of a row, int64 [query_start_loc[-1]]; -1 where its table has no block."""
    import torch

    rows, positions = rows_and_positions(batch)
    columns = batch.block_tables.shape[1]
    known = (positions >= 0) & (positions < columns * block_size)
    slots = torch.full_like(positions, -1)
    blocks = batch.block_tables[rows[known], positions[known] // block_size].long()
    slots[known] = torch.where(blocks >= 0, blocks * block_size + positions[known] % block_size, -1)
    return slots


def rows_and_positions(batch: Batch) -> tuple[Tensor, Tensor]:
    """The row of each token and its position there, int64 [query_start_loc[-1]] each."""
    import torch

    starts = batch.query_start_loc.long()
    rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
    positions = torch.arange(len(rows)) - (starts[1:] - batch.seq_lens.long())[rows]
    return rows, positions


def check_single_group(spec: PoolSpec) -> None:
    """Raise `Unsupported` for several groups or a window. A host pool that no operation uses does no harm."""
    if len(spec.groups) != 1 or spec.groups[0].window is not None:
        raise Unsupported(f"groups {spec.groups}: one group of full attention is offered")


__all__ = [
    "check_cache", "check_options", "check_positions", "check_single_group", "rows_and_positions", "slots_by_position",
]  # fmt: skip
