"""Faults of scores and masks: caps, biases, sinks, windows and causality that are wrong in one path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvbench.faults.fault import Fault, FaultClass
from kvbench.faults.pages import SHAPE, AttendsUnderOtherOptions, SpoiltKernel, attends, spoilt
from kvbench.interface import AttentionOptions, AttentionResult, Batch

SLOPES = (1.0, 0.5, 0.25, 0.125)
SINKS = (2.0, -1.0, 0.5, 1.0)
CHUNKS = ((9, 3), (5, 1), (0, 6), (13, 2))


def decodes_only(batch: Batch) -> bool:
    """Whether every row has one new token."""
    return bool((batch.query_start_loc.diff() == 1).all())


# -- D7: score modifiers -----------------------------------------------------------------------------------------------


class CapsPrefillsOnly(AttendsUnderOtherOptions):
    """Decodes forget the soft cap."""

    def options(self, options: AttentionOptions, batch: Batch) -> AttentionOptions:
        """No cap for decodes."""
        return replace(options, softcap=None) if decodes_only(batch) else options


class ShiftsTheBias(SpoiltKernel):
    """ALiBi counts the distance from the end of the context, not from the query."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        right = super().attend(cache, batch)
        if batch.options.alibi_slopes is None or right.lse is None:
            return right
        # A bias that is the same for all keys changes lse and, with a sink, the weights.
        import torch

        slopes = torch.tensor(batch.options.alibi_slopes, dtype=right.lse.dtype)
        return AttentionResult(right.out, right.lse - slopes)


class HalvesTheSlopes(AttendsUnderOtherOptions):
    """Slopes are kept in eight bits."""

    def options(self, options: AttentionOptions, batch: Batch) -> AttentionOptions:
        """Slopes cut to multiples of an eighth, less a sixteenth."""
        if options.alibi_slopes is None:
            return options
        return replace(options, alibi_slopes=tuple(int(slope * 8) / 8 - 1 / 16 for slope in options.alibi_slopes))


class CountsTheSinkPerSplit(SpoiltKernel):
    """Long contexts are split in two, and each part counts the sink."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        import torch

        right = super().attend(cache, batch)
        if batch.options.sinks is None or right.lse is None:
            return right
        sinks = torch.tensor(batch.options.sinks, dtype=right.lse.dtype)
        twice = torch.logaddexp(right.lse, sinks.expand_as(right.lse))
        shrink = (right.lse - twice).exp()[..., None].to(right.out.dtype)
        long = (batch.seq_lens > 2 * cache.spec.block_size).repeat_interleave(batch.query_start_loc.diff().long())
        out, lse = right.out.clone(), right.lse.clone()
        count = len(long)
        out[:count] = torch.where(long[:, None, None], right.out[:count] * shrink[:count], right.out[:count])
        lse[:count] = torch.where(long[:, None], twice[:count], right.lse[:count])
        return AttentionResult(out, lse)


# -- D8: windows and causality -----------------------------------------------------------------------------------------


class WindowOfOneMore(AttendsUnderOtherOptions):
    """A window shows one key more."""

    def options(self, options: AttentionOptions, batch: Batch) -> AttentionOptions:
        """A wider window."""
        return replace(options, window=options.window + 1) if options.window else options


class WindowInDecodesOnly(AttendsUnderOtherOptions):
    """The part that has a cached context forgets the window, where there is more than one new token."""

    def options(self, options: AttentionOptions, batch: Batch) -> AttentionOptions:
        """No window in chunks."""
        return options if decodes_only(batch) else replace(options, window=None)


class CausalFromTheStart(SpoiltKernel):
    """Queries are counted from position 0, as if nothing were cached."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        import torch

        right = super().attend(cache, batch)
        if not batch.options.causal or right.lse is None:
            return right
        out, lse, starts = right.out.clone(), right.lse.clone(), batch.query_start_loc.tolist()
        for row, length in enumerate(batch.seq_lens.tolist()):
            new = starts[row + 1] - starts[row]
            if new < 2 or new >= length:
                continue
            for token in range(new):
                one = replace(
                    batch,
                    q=batch.q[starts[row] + token : starts[row] + token + 1],
                    block_tables=batch.block_tables[row : row + 1],
                    seq_lens=torch.tensor([token + 1], dtype=torch.int32),
                    query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
                )
                early = self.changed(cache, one)
                assert early.lse is not None
                out[starts[row] + token], lse[starts[row] + token] = early.out[0], early.lse[0]
        return AttentionResult(out, lse)


class ClipsPositionsToTheWindow(AttendsUnderOtherOptions):
    """Contexts longer than the window are taken to be as long as it: the window is one key short there."""

    def options(self, options: AttentionOptions, batch: Batch) -> AttentionOptions:
        """A narrower window for long contexts."""
        if options.window is None or options.window < 2 or int(batch.seq_lens.max()) <= options.window:
            return options
        return replace(options, window=options.window - 1)


class TakesTheFirstContext(SpoiltKernel):
    """All rows of a batch are given the context of its first row, where they have as much."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        if len(batch.seq_lens) < 2:
            return super().attend(cache, batch)
        new = batch.query_start_loc.diff()
        first = batch.seq_lens[0] - new[0]
        return self.changed(cache, batch, seq_lens=batch.seq_lens.minimum(first + new).to(batch.seq_lens.dtype))


def _with(rows: tuple[tuple[int, int], ...] = CHUNKS, scale: float = 1.0, **options: Any) -> Any:
    return attends(rows, AttentionOptions(**options), SHAPE, scale=scale)


ENTRIES: tuple[FaultClass | Fault, ...] = (
    FaultClass(
        "D7", "score-modifiers", "kernel_decode", 3,
        "a soft cap, ALiBi or a sink is wrong in one path",
        ("flashinfer-ai/flashinfer#350", "vllm-project/vllm#7425", "vllm-project/vllm#945", "vllm-project/vllm#996",
         "ROCm/rocm-libraries#12229", "vllm-project/vllm#26325"),
    ),
    Fault("D7a", "the soft cap is dropped in decodes", spoilt("D7a", CapsPrefillsOnly),
          _with(((5, 1), (9, 1)), softcap=1.0, scale=3.0), needs=("softcap",)),
    Fault("D7b", "ALiBi's distance is off by one", spoilt("D7b", ShiftsTheBias), _with(alibi_slopes=SLOPES),
          needs=("alibi",)),
    Fault("D7d", "ALiBi's slopes lose precision", spoilt("D7d", HalvesTheSlopes), _with(alibi_slopes=SLOPES),
          needs=("alibi",)),
    Fault("D7c", "the sink is counted once a split", spoilt("D7c", CountsTheSinkPerSplit), _with(sinks=SINKS),
          needs=("sinks",)),
    FaultClass(
        "D8", "window-causal-mask", "kernel_prefill", 2,
        "a window or the causal offset is wrong where a cached context exists",
        ("sgl-project/sglang#26513", "vllm-project/vllm#4405", "vllm-project/vllm#17574", "vllm-project/vllm#2088",
         "huggingface/text-generation-inference#3112", "ModelTC/lightllm#743", "Dao-AILab/flash-attention#2463"),
    ),
    Fault("D8a", "a window shows one key more", spoilt("D8a", WindowOfOneMore), _with(window=3), needs=("window",)),
    Fault("D8b", "chunks forget the window", spoilt("D8b", WindowInDecodesOnly), _with(window=3), needs=("window",)),
    Fault("D8c", "causality is counted from position 0", spoilt("D8c", CausalFromTheStart), _with()),
    Fault("D8d", "positions are clipped to the window", spoilt("D8d", ClipsPositionsToTheWindow), _with(window=4),
          needs=("window",)),
    Fault("D8e", "rows are given the first row's context", spoilt("D8e", TakesTheFirstContext), _with()),
)  # fmt: skip
