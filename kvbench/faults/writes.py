"""Faults of kernels that write and copy: rows that land in slots, blocks or layers that are not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.pages import ROWS, SHAPE, Pages, SpoiltKernel, attends, spoilt
from kvbench.interface import NO_SLOT, AttentionResult, Batch
from kvbench.subject import Subject

if TYPE_CHECKING:
    from torch import Tensor

# -- A4: padding -------------------------------------------------------------------------------------------------------


class PaddingWraps(SpoiltKernel):
    """Slot -1 is the last slot of the pool."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        last = cache.num_blocks * cache.spec.block_size - 1
        super().write(cache, k, v, slot_mapping.masked_fill(slot_mapping == NO_SLOT, last), layer)


class KeepsOldSlots(SpoiltKernel):
    """Slots lie in a buffer that is kept: padded lanes find those of an earlier, longer step there."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: list[int] = []

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        import torch

        slots = slot_mapping.tolist()
        old = self.buffer[len(slots) :]
        for place, slot in enumerate(slots):
            if slot == NO_SLOT and place < len(self.buffer):
                slots[place] = self.buffer[place]
        usable = cache.num_blocks * cache.spec.block_size
        super().write(cache, k, v, torch.tensor([min(s, usable - 1) for s in slots], dtype=torch.int64), layer)
        self.buffer = [*slot_mapping.tolist(), *old]


class PaddingIsBlockZero(SpoiltKernel):
    """Padded lanes write to block 0, as if nobody owned it."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        super().write(cache, k, v, slot_mapping.masked_fill(slot_mapping == NO_SLOT, 0), layer)


class PaddingIsNotANumber(SpoiltKernel):
    """Padded lanes leave NaN in block 0, which tiles past a row's end read with weight zero."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        super().write(cache, k, v, slot_mapping, layer)
        if bool((slot_mapping == NO_SLOT).any()):
            cache.values[layer][0] = float("nan")


class LoopsOverKeys(SpoiltKernel):
    """Keys past the end of the slot mapping go to slot 0."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        import torch

        missing = slot_mapping.new_zeros(len(k) - len(slot_mapping))
        super().write(cache, k, v, torch.cat([slot_mapping, missing]), layer)


def _changed_by_padding(subject: Subject) -> str | None:
    """A full pool: every slot is somebody's, the first and the last included."""
    import torch

    pages = Pages(subject, [(4, 0), (8, 0), (3, 1)], SHAPE)
    pages.tables = [[0], [pages.num_blocks - 1, 3], [2]]
    for number, row in enumerate(pages.rows):
        k, v = pages.k[number][: row.context], pages.v[number][: row.context]
        pages.kernel.write(pages.cache, k, v, pages.slots(number, 0, row.context))
    pages.kernel.forward(pages.cache, pages.batch())
    pages.kernel.forward(pages.cache, pages.batch(padding=3))
    k, v = (torch.cat([x[2][1:2], x[0][:2] * 5]) for x in (pages.k, pages.v))
    pages.kernel.write(pages.cache, k, v, pages.slots(2, 1, 2))  # one slot for three keys
    pages.rows = [type(row)(row.context + row.new - 1, 1) for row in pages.rows]
    pages.q = [torch.ones(1, SHAPE.num_q_heads, SHAPE.head_dim)] * 3
    return pages.wrong(pages.batch())


def _long_then_short(subject: Subject) -> str | None:
    """A long step, then a short one whose lanes are padded, then what the long one wrote is read."""
    import torch

    pages = Pages(subject, [(0, 6), (2, 1)], SHAPE)
    pages.kernel.forward(pages.cache, pages.batch())
    full = pages.batch()
    short = replace(full, slot_mapping=torch.full_like(full.slot_mapping, NO_SLOT), k=full.k * 5, v=full.v * 5)
    pages.kernel.write(pages.cache, short.k, short.v, short.slot_mapping)
    empty = full.slot_mapping[:0]
    again = pages.kernel.attend(pages.cache, replace(full, k=full.k[:0], v=full.v[:0], slot_mapping=empty))
    right = Pages(subject, [(0, 6), (2, 1)], SHAPE)
    expected = right.kernel.forward(right.cache, right.batch())
    return None if torch.equal(again.out, expected.out) else "padded lanes changed what a longer step wrote"


# -- K2: addresses -----------------------------------------------------------------------------------------------------


class DividesBySixteen(SpoiltKernel):
    """Slots are taken apart with a block size of 16, whatever it is."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        size, usable = cache.spec.block_size, cache.num_blocks * cache.spec.block_size
        moved = (slot_mapping // 16) * size + (slot_mapping % 16) % size
        super().write(cache, k, v, moved.clamp(max=usable - 1).masked_fill(slot_mapping == NO_SLOT, NO_SLOT), layer)


class TakesSlotsForBlocks(SpoiltKernel):
    """Tables are read as if they held token slots: block b is looked for at slot b."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        return self.changed(cache, batch, tables=batch.block_tables // cache.spec.block_size)


class IgnoresStrides(SpoiltKernel):
    """K and V are read as if they were contiguous, whatever views they come in."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        super().write(cache, _as_if_contiguous(k), _as_if_contiguous(v), slot_mapping, layer)


class GuessesTheHeadAxis(SpoiltKernel):
    """Two KV heads are taken for the axis of K and V: the second head's keys are swapped with the first's values."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        if cache.spec.num_kv_heads == 2 and k.shape == v.shape:
            k, v = k.clone(), v.clone()
            k[:, 1], v[:, 0] = v[:, 0].clone(), k[:, 1].clone()
        super().write(cache, k, v, slot_mapping, layer)


class NeedsAnEvenNumberOfHeads(SpoiltKernel):
    """Heads are written in pairs; an odd last one is left out."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        if cache.spec.num_kv_heads % 2:
            k, v = k.clone(), v.clone()
            k[:, -1], v[:, -1] = 0, 0
        super().write(cache, k, v, slot_mapping, layer)


def _as_if_contiguous(x: Tensor) -> Tensor:
    if x.is_contiguous() or x.numel() == 0:
        return x
    return x.as_strided(x.shape, x.contiguous().stride(), x.storage_offset())


def _interleaved(subject: Subject) -> str | None:
    """K and V as slices of one buffer."""
    import torch

    pages = Pages(subject, ROWS, SHAPE)
    batch = pages.batch()
    both = torch.stack([batch.k, batch.v], dim=1)
    return pages.wrong(replace(batch, k=both[:, 0], v=both[:, 1]))


# -- C2: copies --------------------------------------------------------------------------------------------------------


class CopiesKeysOnly(SpoiltKernel):
    """Values stay behind."""

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            for layer in cache.keys:
                layer[target] = layer[source]


class CopiesLaterLayersFromTheFirst(SpoiltKernel):
    """What belongs to the second half of the layers is copied from the first half."""

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int]]) -> None:
        half = -(-len(cache.keys) // 2)
        for source, target in pairs:
            for layers in (cache.keys, cache.values):
                for number, layer in enumerate(layers):
                    layer[target] = layers[number % half][source]


class CopiesTooMuch(SpoiltKernel):
    """The copy runs over into the first row of the next block."""

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(cache, pairs)
        for _, target in pairs:
            if target + 1 < cache.num_blocks:
                cache.values[0][target + 1, 0] = cache.values[0][target, 0]


class CopiesAtOnce(SpoiltKernel):
    """All sources are read before any target is written, so chains go wrong."""

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            sources, targets = (list(ids) for ids in zip(*pairs, strict=True))
            for layer in (*cache.keys, *cache.values):
                layer[targets] = layer[sources].clone()


def _copied(subject: Subject) -> str | None:
    """A chain of copies in two layers; the last target is read, its neighbour too."""
    for layer in (0, 1):
        pages = Pages(subject, [(4, 0), (3, 1), (4, 0)], replace(SHAPE, num_layers=2))
        other = 1 - layer
        first = pages.slots(0, 0, 4)
        pages.kernel.write(pages.cache, pages.k[0] + 1, pages.v[0] + 1, first, other)
        source, spare = pages.tables[0][0], 1
        pages.kernel.copy_blocks(pages.cache, [(source, 0), (0, spare)])
        pages.tables[0] = [spare]
        pages.rows[0] = type(pages.rows[0])(3, 1)
        pages.q[0] = pages.q[1]
        batch = pages.batch(layer=layer)
        kept = replace(batch, slot_mapping=batch.slot_mapping.masked_fill(batch.slot_mapping // 4 == spare, NO_SLOT))
        if wrong := pages.wrong(kept):
            return wrong
        if wrong := _untouched_neighbour(subject):
            return wrong
    return None


def _untouched_neighbour(subject: Subject) -> str | None:
    pages = Pages(subject, [(4, 0), (3, 1)], SHAPE)
    below = pages.tables[1][0] - 1
    pages.kernel.copy_blocks(pages.cache, [(pages.tables[0][0], below)])
    return pages.wrong(pages.batch())


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "A4", "reserved-slot-aliasing", "kernel_write", 3,
        "padded lanes write to memory that belongs to somebody",
        ("vllm-project/vllm#35431", "vllm-project/vllm#39444", "vllm-project/vllm#36580", "vllm-project/vllm#43810",
         "sgl-project/sglang#24743", "sgl-project/sglang#32477", "vllm-project/vllm#13922"),
    ),
    Fault("A4a", "padded lanes write to block 0, which is handed out", spoilt("A4a", PaddingIsBlockZero),
          _changed_by_padding),
    Fault("A4b", "slot -1 is the last slot of the last block", spoilt("A4b", PaddingWraps), _changed_by_padding),
    Fault("A4c", "padded lanes keep the slots of a longer step", spoilt("A4c", KeepsOldSlots), _long_then_short),
    Fault("A4e", "padded lanes leave NaN in block 0", spoilt("A4e", PaddingIsNotANumber), _changed_by_padding),
    Fault("A4f", "the writer loops over keys instead of slots", spoilt("A4f", LoopsOverKeys), _changed_by_padding),
    FaultClass(
        "K2", "address-math", "kernel_write", 3,
        "a slot or an address is computed from the wrong block size, unit or stride",
        ("vllm-project/vllm#31540", "vllm-project/vllm-ascend#7019", "sgl-project/sglang#8685",
         "sgl-project/sglang#4855", "sgl-project/sglang#23757", "flashinfer-ai/flashinfer#527",
         "vllm-project/vllm#37228", "LMCache/LMCache#4467", "flashinfer-ai/flashinfer@288e1431f"),
    ),
    Fault("K2a", "slots are taken apart with a block size of 16", spoilt("K2a", DividesBySixteen), attends()),
    Fault("K2b", "tables are read as if they held slots", spoilt("K2b", TakesSlotsForBlocks), attends()),
    Fault("K2c", "strides of K and V are derived from their shape", spoilt("K2c", IgnoresStrides), _interleaved),
    Fault("K2d", "two KV heads are taken for K and V", spoilt("K2d", GuessesTheHeadAxis), attends()),
    Fault("K2e", "an odd last head is not written", spoilt("K2e", NeedsAnEvenNumberOfHeads),
          attends(spec=replace(SHAPE, num_q_heads=3, num_kv_heads=3))),
    Fault("C2a", "a copy takes keys and leaves values", spoilt("C2a", CopiesKeysOnly), _copied,
          needs=("copy_blocks",)),
    Fault("C2c", "later layers are copied from the first ones", spoilt("C2c", CopiesLaterLayersFromTheFirst), _copied,
          needs=("copy_blocks",)),
    Fault("C2e", "a copy runs over into the next block", spoilt("C2e", CopiesTooMuch), _copied,
          needs=("copy_blocks",)),
    Fault("C2g", "a chain of copies is carried out at once", spoilt("C2g", CopiesAtOnce), _copied,
          needs=("copy_blocks",)),
)  # fmt: skip
