"""Faults of kernels that attend: too many or too few positions, what is dead, nothing at all, the wrong head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.pages import ROWS, SHAPE, Pages, SpoiltKernel, attends, spoilt
from kvbench.interface import AttentionOptions, AttentionResult, Batch
from kvbench.subject import Subject

# -- D1: where a context ends ------------------------------------------------------------------------------------------


class MasksByTile(SpoiltKernel):
    """The last tile of 8 positions takes part as a whole, where the last block has room."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        size = cache.spec.block_size
        longer = (batch.seq_lens + 7) // 8 * 8
        held = (batch.seq_lens + size - 1) // size * size
        return self.changed(cache, batch, seq_lens=longer.minimum(held).maximum(batch.seq_lens))


class MiscountsTheLastPage(SpoiltKernel):
    """A context that fills its last block exactly is taken to be one token shorter."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        full = (batch.seq_lens % cache.spec.block_size == 0) & (batch.seq_lens > 1)
        return self.changed(cache, batch, seq_lens=batch.seq_lens - full.to(batch.seq_lens.dtype))


class ForgetsTheEndWithoutCausality(SpoiltKernel):
    """Where nothing is causal, whole blocks take part."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        if batch.options.causal or batch.options.window is not None:
            return super().attend(cache, batch)
        size = cache.spec.block_size
        return self.changed(cache, batch, seq_lens=(batch.seq_lens + size - 1) // size * size)


class ReadsPastTheRow(SpoiltKernel):
    """A context longer than its table goes on in the table of the next row."""

    def check(self, cache: Any, batch: Batch) -> None:
        """Whatever is asked is answered."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        import torch

        columns = -(-int(batch.seq_lens.max()) // cache.spec.block_size) if len(batch.seq_lens) else 0
        missing = columns - batch.block_tables.shape[1]
        if missing <= 0:
            return self.unchecked(cache, batch)
        following = batch.block_tables.roll(-1, 0)[:, :1].expand(-1, missing)
        tables = torch.cat([batch.block_tables, following], dim=1).clamp(0, cache.num_blocks - 1)
        return self.unchecked(cache, batch, tables=tables)


class GathersOneBlockMore(SpoiltKernel):
    """The block behind the last one is gathered, too, and its first row takes part."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        import torch

        size = cache.spec.block_size
        more = (batch.seq_lens % size == 0) & (batch.seq_lens > 0)
        padded = torch.cat([batch.block_tables, batch.block_tables[:, -1:]], dim=1)
        tables = torch.where(padded < 0, 0, padded).clamp(0, cache.num_blocks - 1)
        return self.changed(cache, batch, tables=tables, seq_lens=batch.seq_lens + more.to(batch.seq_lens.dtype))


def _wrong_table(subject: Subject) -> str | None:
    """Five tokens of context and a table of one block: refused, or what stands there cannot be right."""
    pages = Pages(subject, [(4, 1), (4, 1)], SHAPE)
    batch = pages.batch()
    try:
        pages.kernel.attend(pages.cache, replace(batch, block_tables=batch.block_tables[:, :1].contiguous()))
    except Exception:
        return None
    return "a context longer than its table is answered"


# -- D2: what is not a number ------------------------------------------------------------------------------------------


class WeighsTheTailWithZero(SpoiltKernel):
    """Values of all slots of a row's blocks are added, those behind its end with weight zero."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        out, starts, size = right.out.clone(), batch.query_start_loc.tolist(), cache.spec.block_size
        group = cache.spec.num_q_heads // cache.spec.num_kv_heads
        for row, length in enumerate(batch.seq_lens.tolist()):
            blocks = batch.block_tables[row, : -(-length // size)].long()
            total = cache.values[batch.layer][blocks[blocks >= 0]].flatten(0, 1).sum(0).repeat_interleave(group, 0)
            out[starts[row] : starts[row + 1]] += (0 * total).to(out.dtype)
        return AttentionResult(out, right.lse)


class AddsTheBiasFirst(SpoiltKernel):
    """Scores of dead rows get their bias before the mask: what is not finite there stays so."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        size, starts = cache.spec.block_size, batch.query_start_loc.tolist()
        out = right.out.clone()
        for row, length in enumerate(batch.seq_lens.tolist()):
            if length % size and starts[row + 1] > starts[row]:
                tail = cache.keys[batch.layer][int(batch.block_tables[row, length // size]), length % size :]
                if not bool(tail.isfinite().all()):
                    out[starts[row] : starts[row + 1]] = float("nan")
        return AttentionResult(out, right.lse)


class LoadsWhatTheWindowLeft(SpoiltKernel):
    """Blocks before the window are loaded, and weighted with zero."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        if batch.options.window is None:
            return right
        out, starts = right.out.clone(), batch.query_start_loc.tolist()
        for row in range(len(batch.seq_lens)):
            first = int(batch.block_tables[row, 0]) if batch.block_tables.shape[1] else -1
            dead = cache.values[batch.layer][max(first, 0)].sum()
            out[starts[row] : starts[row + 1]] += (0 * dead).to(out.dtype)
        return AttentionResult(out, right.lse)


class SumsAFreshBlock(SpoiltKernel):
    """The first block that nobody holds is read with weight zero, cleared or not."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        held = set(batch.block_tables.flatten().tolist())
        free = next((block for block in range(cache.num_blocks) if block not in held), None)
        if free is None:
            return right
        return AttentionResult(right.out + (0 * cache.values[batch.layer][free].sum()).to(right.out.dtype), right.lse)


def _dead(value: float, options: AttentionOptions = AttentionOptions()) -> Any:  # noqa: B008
    def trigger(subject: Subject) -> str | None:
        pages = Pages(subject, ROWS, SHAPE, dead=value)
        return pages.wrong(pages.batch(options))

    return trigger


def _dead_behind_a_window(subject: Subject) -> str | None:
    """What a window has left behind is handed out and holds something else by now."""
    import torch

    pages = Pages(subject, [(12, 1)], SHAPE)
    batch = pages.batch(AttentionOptions(window=3))
    gone = pages.slots(0, 0, 4)
    poison = torch.full((4, SHAPE.num_kv_heads, SHAPE.head_dim), float("nan"))
    pages.kernel.write(pages.cache, poison, poison, gone)
    return pages.wrong(batch)


# -- D3: nothing to see ------------------------------------------------------------------------------------------------


class NothingIsNotANumber(SpoiltKernel):
    """A token that sees no key comes out as NaN."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        assert right.lse is not None
        return AttentionResult(right.out.masked_fill((right.lse == -float("inf"))[..., None], float("nan")), right.lse)


class ShiftsBehindEmptyRows(SpoiltKernel):
    """A row without new tokens moves the answers of those after it."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        empty = bool((batch.query_start_loc.diff() == 0).any())
        return AttentionResult(right.out.roll(1, 0) if empty else right.out, right.lse)


class MergesNothingWithNothing(SpoiltKernel):
    """Parts of a context are merged by their lse; two parts without a visible key give inf - inf."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        assert right.lse is not None
        weight = (right.lse - right.lse).exp()
        return AttentionResult(right.out * weight[..., None].to(right.out.dtype), right.lse)


class StartsAtMinusFiftyThousand(SpoiltKernel):
    """The running maximum starts at a finite number: smaller logits vanish."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        assert right.lse is not None
        return AttentionResult(right.out.masked_fill((right.lse < -5e4)[..., None], 0), right.lse)


class RepeatsTheFirstKey(SpoiltKernel):
    """Queries before the first key, where there are more of them than context, see key 0."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        import torch

        right = super().attend(cache, batch)
        assert right.lse is not None
        out, starts = right.out.clone(), batch.query_start_loc.tolist()
        group = cache.spec.num_q_heads // cache.spec.num_kv_heads
        for row, length in enumerate(batch.seq_lens.tolist()):
            hidden = starts[row + 1] - starts[row] - length
            if hidden > 0 and length > 0:
                first = cache.values[batch.layer][int(batch.block_tables[row, 0]), 0].repeat_interleave(group, 0)
                out[starts[row] : starts[row] + hidden] = first.to(out.dtype)
        return AttentionResult(torch.as_tensor(out), right.lse)


class NeedsARow(SpoiltKernel):
    """An empty batch ends it."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        if not len(batch.seq_lens):
            raise IndexError("no rows")
        return super().attend(cache, batch)


def _more_queries_than_keys(subject: Subject) -> str | None:
    """Rows whose new tokens are more than their context: the first see nothing."""
    import torch

    pages = Pages(subject, [(0, 2), (4, 1)], SHAPE)
    batch = pages.batch()
    shorter = replace(batch, seq_lens=batch.seq_lens - torch.tensor([1, 0], dtype=torch.int32))
    result = pages.kernel.attend(pages.cache, shorter)
    return None if not bool(result.out[0].any()) else "a token that sees no key has an answer"


def _empty_rows(subject: Subject) -> str | None:
    pages = Pages(subject, [(0, 0), (4, 1), (5, 0), (2, 3)], SHAPE)
    return pages.wrong(pages.batch())


def _no_rows(subject: Subject) -> str | None:
    pages = Pages(subject, [(1, 1)], SHAPE)
    batch = pages.batch()
    none = replace(
        batch, q=batch.q[:0], k=batch.k[:0], v=batch.v[:0], slot_mapping=batch.slot_mapping[:0],
        block_tables=batch.block_tables[:0], seq_lens=batch.seq_lens[:0], query_start_loc=batch.query_start_loc[:1],
    )  # fmt: skip
    pages.kernel.forward(pages.cache, none)
    return None


# -- D5: heads and dimensions ------------------------------------------------------------------------------------------


class HeadByRemainder(SpoiltKernel):
    """Query head h reads KV head h % num_kv_heads."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        import torch

        heads, kv = cache.spec.num_q_heads, cache.spec.num_kv_heads
        order = torch.tensor(sorted(range(heads), key=lambda head: (head % kv, head)))
        back = torch.argsort(order)
        slopes, sinks = (
            None if given is None else tuple(given[int(head)] for head in order)
            for given in (batch.options.alibi_slopes, batch.options.sinks)
        )
        options = replace(batch.options, alibi_slopes=slopes, sinks=sinks)
        right = super().attend(cache, replace(batch, q=batch.q[:, order], options=options))
        return AttentionResult(right.out[:, back], None if right.lse is None else right.lse[:, back])


class GroupsOfPowersOfTwo(SpoiltKernel):
    """Query heads of a group beyond the largest power of two within it answer like the first."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        ratio = cache.spec.num_q_heads // cache.spec.num_kv_heads
        fitting = 1 << (ratio.bit_length() - 1)
        q = batch.q.clone()
        for head in range(cache.spec.num_q_heads):
            if head % ratio >= fitting:
                q[:, head] = q[:, head - head % ratio]
        return super().attend(cache, replace(batch, q=q))


class ForgetsOddDimensions(SpoiltKernel):
    """Dimensions beyond the largest power of two within head_dim take no part in the scores."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        q, dim = batch.q.clone(), cache.spec.head_dim
        q[..., 1 << (dim.bit_length() - 1) :] = 0
        return super().attend(cache, replace(batch, q=q))


class ValuesLikeKeys(SpoiltKernel):
    """Values are taken to have head_dim elements: what is beyond is lost."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        out = right.out.clone()
        out[..., cache.spec.head_dim :] = 0
        return AttentionResult(out, right.lse)


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "D1", "tail-bound", "kernel_decode", 1,
        "positions behind the end of a context take part, or its last ones are dropped",
        ("flashinfer-ai/flashinfer#3717", "flashinfer-ai/flashinfer@6c8bac1a5", "vllm-project/vllm#31282",
         "Dao-AILab/flash-attention#2711", "vllm-project/vllm#28760"),
    ),
    Fault("D1a", "the end is masked by tiles", spoilt("D1a", MasksByTile), attends()),
    Fault("D1b", "an exactly full last block is one token short", spoilt("D1b", MiscountsTheLastPage),
          attends(((3, 1), (7, 1)))),
    Fault("D1c", "without causality the end has no mask", spoilt("D1c", ForgetsTheEndWithoutCausality),
          attends(options=AttentionOptions(causal=False)), needs=("non_causal",)),
    Fault("D1d", "a context longer than its table is read from the next row", spoilt("D1d", ReadsPastTheRow),
          _wrong_table),
    Fault("D1e", "one block too many is gathered", spoilt("D1e", GathersOneBlockMore), attends(((3, 1), (7, 1)))),
    FaultClass(
        "D2", "nan-leak", "kernel_decode", 2,
        "masked positions contribute 0 * NaN or NaN - inf",
        ("vllm-project/vllm#35219", "vllm-project/vllm#936", "Dao-AILab/flash-attention#1745",
         "flashinfer-ai/flashinfer#941", "vllm-project/vllm#30887", "ROCm/aiter#5401", "nod-ai/amd-shark-ai#665",
         "ggml-org/llama.cpp#3523"),
    ),
    Fault("D2a", "values behind the end are weighted with zero", spoilt("D2a", WeighsTheTailWithZero),
          _dead(float("nan"))),
    Fault("D2b", "a bias is added before the mask", spoilt("D2b", AddsTheBiasFirst), _dead(float("inf"))),
    Fault("D2c", "blocks outside the window are loaded", spoilt("D2c", LoadsWhatTheWindowLeft),
          _dead_behind_a_window, needs=("window",)),
    Fault("D2d", "a block that nobody cleared is read", spoilt("D2d", SumsAFreshBlock), _dead(float("nan"))),
    FaultClass(
        "D3", "empty-or-fully-masked", "kernel_decode", 2,
        "rows with no visible key give NaN, garbage, a crash, or corrupt their neighbours",
        ("flashinfer-ai/flashinfer#363", "Dao-AILab/flash-attention#2470", "Dao-AILab/flash-attention@a3a257c7",
         "vllm-project/vllm#28181", "Dao-AILab/flash-attention@26d7d92f", "flashinfer-ai/flashinfer#4401"),
    ),
    Fault("D3a", "an idle row moves its neighbours' answers", spoilt("D3a", ShiftsBehindEmptyRows), _empty_rows),
    Fault("D3b", "two empty parts are merged into NaN", spoilt("D3b", MergesNothingWithNothing),
          _more_queries_than_keys),
    Fault("D3c", "a finite number stands for minus infinity", spoilt("D3c", StartsAtMinusFiftyThousand),
          attends(((0, 1), (0, 1)), scale=3e5)),
    Fault("D3d", "queries before the first key see it", spoilt("D3d", RepeatsTheFirstKey), _more_queries_than_keys),
    Fault("D3e", "an empty batch ends the kernel", spoilt("D3e", NeedsARow), _no_rows),
    FaultClass(
        "D5", "head-mapping-and-dims", "kernel_decode", 2,
        "query heads are mapped to the wrong KV heads, or dimensions are padded wrongly",
        ("vllm-project/vllm#23424", "flashinfer-ai/flashinfer#1614", "vllm-project/vllm#4128",
         "InternLM/lmdeploy#4850", "Dao-AILab/flash-attention@e3b2400a"),
    ),
    Fault("D5a", "query head h reads KV head h % num_kv_heads", spoilt("D5a", HeadByRemainder), attends()),
    Fault("D5b", "group sizes are rounded down to a power of two", spoilt("D5b", GroupsOfPowersOfTwo),
          attends(spec=replace(SHAPE, num_q_heads=6))),
    Fault("D5c", "head_dim is rounded down to a power of two", spoilt("D5c", ForgetsOddDimensions),
          attends(spec=replace(SHAPE, head_dim=24))),
    Fault("D5d", "values are taken to be as long as keys", spoilt("D5d", ValuesLikeKeys),
          attends(spec=replace(SHAPE, head_dim_v=32)), needs=("separate_value_dim",)),
)  # fmt: skip
