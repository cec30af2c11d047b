"""Each correctness check finds the faults it is for, and says nothing against kernels that are right.

The faulty kernels are the reference kernel with one operation spoilt.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kvbench.adapters.reference import ReferenceAdapter
from kvbench.adapters.torch import TorchAdapter
from kvbench.budget import BUDGETS, effort
from kvbench.checks import skip_reason
from kvbench.codec import decode, encode
from kvbench.interface import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    KERNEL_OPERATIONS,
    KERNEL_OPTIONS,
    AttentionResult,
    Capabilities,
    KernelCapabilities,
    Limit,
    Precision,
    Sizes,
)
from kvbench.reference.attention import attend_paged
from kvbench.reference.kernel import ReferenceKernel
from kvbench.search import judge, search
from kvbench.subject import Subject
from kvbench.suites.correctness import CHECKS

EVERYTHING = KernelCapabilities(
    precisions=(FLOAT32,),
    separate_value_dim=True,
    options=KERNEL_OPTIONS,
    operations=frozenset(KERNEL_OPERATIONS) - {"plan"},
    batch_invariant=True,
)

RIGHT = ReferenceKernel()


@dataclass(frozen=True)
class FaultyKernel:
    """The reference kernel with some operations replaced; `forward` is made of `write` and `attend`."""

    write: Callable = RIGHT.write
    attend: Callable = RIGHT.attend
    copy_blocks: Callable = RIGHT.copy_blocks
    create: Callable = RIGHT.create
    before: Callable = lambda cache, batch: None

    def forward(self, cache, batch):
        self.before(cache, batch)
        self.write(cache, batch.k, batch.v, batch.slot_mapping, batch.layer)
        return self.attend(cache, batch)


@dataclass(frozen=True)
class FaultyAdapter:
    """An adapter with a faulty kernel and no manager."""

    faulty: FaultyKernel
    kernel_capabilities: KernelCapabilities = EVERYTHING
    name: str = "faulty"
    version: str = "0"
    about: str = "a deliberate fault"

    @property
    def capabilities(self):
        return Capabilities(kernel=self.kernel_capabilities)

    def kernel(self, config):
        return self.faulty

    def manager(self, spec, config):
        raise NotImplementedError


def attends(change, **other):
    """A kernel that attends to a changed batch."""
    return FaultyKernel(attend=lambda cache, batch: RIGHT.attend(cache, change(cache, batch)), **other)


def answers(change):
    """A kernel that changes its answer. change: (out, lse, batch) -> out, lse."""

    def attend(cache, batch):
        right = RIGHT.attend(cache, batch)
        return AttentionResult(*change(right.out.clone(), right.lse.clone(), batch))

    return FaultyKernel(attend=attend)


def with_options(change):
    """A kernel that answers under changed options."""
    return attends(lambda cache, batch: replace(batch, options=change(batch.options, batch)))


def unchecked(cache, batch, values=None, table=None, seq_lens=None):
    """What the reference computes, without its checks and with some arguments replaced."""
    return attend_paged(
        batch.q,
        cache.keys[batch.layer],
        cache.values[batch.layer] if values is None else values,
        batch.block_tables if table is None else table,
        batch.seq_lens if seq_lens is None else seq_lens,
        batch.query_start_loc,
        batch.options,
    )


def rounded(result, batch):
    """A float64 result in the dtype of the batch."""
    return AttentionResult(result.out.to(batch.q.dtype), result.lse)


# --------------------------------------------------------------------------------------------------------------------
# Numbers
# --------------------------------------------------------------------------------------------------------------------

zeros = answers(lambda out, lse, batch: (out * 0, lse))
log2_lse = answers(lambda out, lse, batch: (out, lse / 0.6931471805599453))
scale_4_percent = with_options(
    lambda options, batch: replace(options, scale=1.04 * (options.scale or batch.q.shape[-1] ** -0.5))
)


def _one_token_more(cache, batch):
    """Reads one row past the context where the last block has room."""
    bs = cache.spec.block_size
    more = torch.where(batch.seq_lens % bs > 0, batch.seq_lens + 1, batch.seq_lens)
    return rounded(unchecked(cache, batch, seq_lens=more), batch)


def _head_by_remainder(cache, batch):
    """Query head h reads KV head h % num_kv_heads."""
    kv, q_heads = cache.spec.num_kv_heads, cache.spec.num_q_heads
    order = torch.tensor(sorted(range(q_heads), key=lambda head: (head % kv, head)))
    back = torch.argsort(order)
    options = batch.options
    for name in ("alibi_slopes", "sinks"):
        if getattr(options, name) is not None:
            options = replace(options, **{name: tuple(getattr(options, name)[int(head)] for head in order)})
    right = RIGHT.attend(cache, replace(batch, q=batch.q[:, order], options=options))
    return AttentionResult(right.out[:, back], right.lse[:, back])


def _truncates(cache, k, v, slot_mapping, layer=0):
    """Drops the low bits on the way to bfloat16 instead of rounding to nearest."""
    cut = [(x.view(torch.int32) & ~0xFFFF).view(torch.float32) for x in (k.contiguous(), v.contiguous())]
    RIGHT.write(cache, *cut, slot_mapping, layer)


def _finite_sentinel(cache, batch):
    """Starts the running maximum at -50,000, so that smaller logits vanish."""
    right = RIGHT.attend(cache, batch)
    lost = right.lse < -5e4
    return AttentionResult(right.out.masked_fill(lost[..., None], 0), right.lse)


def _garbage_of_prefills(cache, batch):
    """Garbage for every row of two or more new tokens; decodes are right."""
    right = RIGHT.attend(cache, batch)
    new = batch.query_start_loc.diff().long()
    several = (new > 1).repeat_interleave(new)
    out = right.out.clone()
    out[: len(several)][several] = out[: len(several)][several].roll(1, -1) * 3
    return AttentionResult(out, right.lse)


garbage_of_prefills = FaultyKernel(attend=_garbage_of_prefills)
head_by_remainder = FaultyKernel(attend=_head_by_remainder)
truncates = FaultyKernel(write=_truncates)
finite_sentinel = FaultyKernel(attend=_finite_sentinel)
sloppy_tail = FaultyKernel(attend=_one_token_more)

# --------------------------------------------------------------------------------------------------------------------
# Options
# --------------------------------------------------------------------------------------------------------------------

window_off_by_one = with_options(
    lambda options, batch: replace(options, window=options.window + 1) if options.window else options
)
no_softcap = with_options(lambda options, batch: replace(options, softcap=None))
no_alibi = with_options(lambda options, batch: replace(options, alibi_slopes=None))
no_sinks = with_options(lambda options, batch: replace(options, sinks=None))
no_scale = with_options(lambda options, batch: replace(options, scale=None))
always_causal = with_options(lambda options, batch: replace(options, causal=True))


# --------------------------------------------------------------------------------------------------------------------
# Content
# --------------------------------------------------------------------------------------------------------------------


def _in_order(cache, batch):
    """Ignores the block table: reads blocks 0, 1, 2, ... for every row."""
    columns = torch.arange(batch.block_tables.shape[1], dtype=torch.int32)
    table = columns.expand(len(batch.seq_lens), -1).clamp(max=cache.num_blocks - 1)
    return rounded(unchecked(cache, batch, table=table), batch)


def _values_of_layer_0(cache, batch):
    return rounded(unchecked(cache, batch, values=cache.values[0]), batch)


def _padding_wraps(cache, k, v, slot_mapping, layer=0):
    """Slot -1 is the last slot of the pool."""
    slots = cache.num_blocks * cache.spec.block_size
    RIGHT.write(cache, k, v, torch.where(slot_mapping == -1, slots - 1, slot_mapping), layer)


def _loops_over_keys(cache, k, v, slot_mapping, layer=0):
    """Rows past the end of the slot mapping go to slot 0."""
    missing = slot_mapping.new_zeros(len(k) - len(slot_mapping))
    RIGHT.write(cache, k, v, torch.cat([slot_mapping, missing]), layer)


def _writes_a_row_too_many(cache, batch):
    """`forward` also fills the slot after the last new token."""
    written = batch.slot_mapping[batch.slot_mapping >= 0]
    if len(written):
        slot = (written[-1:] + 1) % (cache.num_blocks * cache.spec.block_size)
        RIGHT.write(cache, batch.k[-1:], batch.v[-1:], slot, batch.layer)


in_order = FaultyKernel(attend=_in_order)
values_of_layer_0 = FaultyKernel(attend=_values_of_layer_0)
padding_wraps = FaultyKernel(write=_padding_wraps)
loops_over_keys = FaultyKernel(write=_loops_over_keys)
writes_a_row_too_many = FaultyKernel(before=_writes_a_row_too_many)


def _copies_keys(cache, pairs):
    for source, target in pairs:
        for layer in cache.keys:
            layer[target] = layer[source]


def _copies_first_layer(cache, pairs):
    for source, target in pairs:
        cache.keys[0][target] = cache.keys[0][source]
        cache.values[0][target] = cache.values[0][source]


def _copies_at_once(cache, pairs):
    sources, targets = map(list, zip(*pairs, strict=True))
    for layer in (*cache.keys, *cache.values):
        layer[targets] = layer[sources].clone()


def _copies_too_much(cache, pairs):
    RIGHT.copy_blocks(cache, pairs)
    for _, target in pairs:
        if target + 1 < cache.num_blocks:
            cache.values[0][target + 1, 0] = cache.values[0][target, 0]


copies_keys = FaultyKernel(copy_blocks=_copies_keys)
copies_first_layer = FaultyKernel(copy_blocks=_copies_first_layer)
copies_at_once = FaultyKernel(copy_blocks=_copies_at_once)
copies_too_much = FaultyKernel(copy_blocks=_copies_too_much)

# --------------------------------------------------------------------------------------------------------------------
# Relations
# --------------------------------------------------------------------------------------------------------------------


def _depends_on_place(cache, batch):
    """Low bits of the answer depend on where the blocks are."""
    right = RIGHT.attend(cache, batch)
    first = int(batch.block_tables[:, :1].sum()) if batch.block_tables.numel() else 0
    return AttentionResult(right.out * (1 + first * 2e-7), right.lse)


def _depends_on_neighbours(cache, batch):
    """Rows shorter than the longest one of the batch come out 1 % too large."""
    if not len(batch.seq_lens):
        return RIGHT.attend(cache, batch)
    right = RIGHT.attend(cache, batch)
    out = right.out.clone()
    shorter = (batch.seq_lens < batch.seq_lens.max()).repeat_interleave(batch.query_start_loc.diff().long())
    out[: len(shorter)][shorter] *= 1.01
    return AttentionResult(out, right.lse)


def _offset_from_the_start(cache, batch):
    """Causality counts queries from position 0, as if nothing were cached."""
    rows = []
    starts = batch.query_start_loc.tolist()
    for row, seq_len in enumerate(batch.seq_lens.tolist()):
        for token in range(starts[row], starts[row + 1]):
            seen = token - starts[row] + 1 if starts[row + 1] - starts[row] > 1 else seq_len
            one = replace(
                batch,
                q=batch.q[token : token + 1],
                block_tables=batch.block_tables[row : row + 1],
                seq_lens=batch.seq_lens.new_tensor([seen]),
                query_start_loc=batch.query_start_loc.new_tensor([0, 1]),
            )
            rows.append(RIGHT.attend(cache, one))
    if not rows:
        return RIGHT.attend(cache, batch)
    return AttentionResult(torch.cat([r.out for r in rows]), torch.cat([r.lse for r in rows]))


def _zero_times_anything(cache, batch):
    """Adds all slots of a row's blocks with weight zero."""
    right = RIGHT.attend(cache, batch)
    out = right.out.clone()
    starts, bs = batch.query_start_loc.tolist(), cache.spec.block_size
    for row, seq_len in enumerate(batch.seq_lens.tolist()):
        blocks = batch.block_tables[row, : -(-seq_len // bs)].long()
        total = (
            cache.values[batch.layer][blocks]
            .flatten(0, 1)
            .sum(0)
            .repeat_interleave(cache.spec.num_q_heads // cache.spec.num_kv_heads, 0)
        )
        out[starts[row] : starts[row + 1]] += 0 * total
    return AttentionResult(out, right.lse)


def _peeks_at_last_column(cache, batch):
    """Uses the table's last column, whether the row needs it or not."""
    right = RIGHT.attend(cache, batch)
    if not batch.block_tables.shape[1]:
        return right
    last = batch.block_tables[:, -1].clamp(0, cache.num_blocks - 1).sum()
    return AttentionResult(right.out * (1 + 1e-6 * float(last)), right.lse)


depends_on_place = FaultyKernel(attend=_depends_on_place)
depends_on_neighbours = FaultyKernel(attend=_depends_on_neighbours)
offset_from_the_start = FaultyKernel(attend=_offset_from_the_start)
zero_times_anything = FaultyKernel(attend=_zero_times_anything)
peeks_at_last_column = FaultyKernel(attend=_peeks_at_last_column)

# --------------------------------------------------------------------------------------------------------------------
# Edges
# --------------------------------------------------------------------------------------------------------------------


def _wraps_writes(cache, k, v, slot_mapping, layer=0):
    RIGHT.write(cache, k, v, slot_mapping % (cache.num_blocks * cache.spec.block_size), layer)


def _wraps_reads(cache, batch):
    return rounded(unchecked(cache, batch, table=batch.block_tables % cache.num_blocks), batch)


def _nan_for_nothing(cache, batch):
    right = RIGHT.attend(cache, batch)
    return AttentionResult(right.out.masked_fill((right.lse == -torch.inf)[..., None], torch.nan), right.lse)


def _neighbour_of_nothing(cache, batch):
    """A row without new tokens shifts the answer of the rows after it."""
    right = RIGHT.attend(cache, batch)
    empty = bool((batch.query_start_loc.diff() == 0).any())
    return AttentionResult(right.out.roll(1, 0) if empty else right.out, right.lse)


def _needs_a_row(cache, batch):
    if not len(batch.seq_lens):
        raise IndexError("no rows")
    return RIGHT.attend(cache, batch)


wraps = FaultyKernel(write=_wraps_writes, attend=_wraps_reads)
nan_for_nothing = FaultyKernel(attend=_nan_for_nothing)
neighbour_of_nothing = FaultyKernel(attend=_neighbour_of_nothing)
needs_a_row = FaultyKernel(attend=_needs_a_row)


# --------------------------------------------------------------------------------------------------------------------

BFLOAT16_STORAGE = Precision("bf16kv", "float32", "bfloat16")
PLAIN_ONLY = replace(
    EVERYTHING, options=frozenset({"lse"}), separate_value_dim=False, head_dims=Sizes((64,)), block_sizes=Sizes((16,))
)


def _ignores_options(cache, batch):
    return RIGHT.attend(cache, replace(batch, options=type(batch.options)()))


ignores_options = FaultyKernel(attend=_ignores_options)

FAULTS = [
    ("numbers", "zeros", zeros, EVERYTHING),
    ("numbers", "log2_lse", log2_lse, EVERYTHING),
    ("numbers", "scale_4_percent", scale_4_percent, EVERYTHING),
    ("numbers", "scale_4_percent in bfloat16", scale_4_percent, replace(EVERYTHING, precisions=(BFLOAT16,))),
    ("numbers", "head_by_remainder", head_by_remainder, EVERYTHING),
    ("numbers", "sloppy_tail", sloppy_tail, EVERYTHING),
    ("numbers", "sloppy_tail in bfloat16", sloppy_tail, replace(EVERYTHING, precisions=(BFLOAT16,))),
    ("numbers", "truncates", truncates, replace(EVERYTHING, precisions=(BFLOAT16_STORAGE,))),
    ("numbers", "garbage_of_prefills in float16", garbage_of_prefills, replace(EVERYTHING, precisions=(FLOAT16,))),
    ("numbers", "finite_sentinel", finite_sentinel, EVERYTHING),
    ("options", "window_off_by_one", window_off_by_one, EVERYTHING),
    ("options", "no_softcap", no_softcap, EVERYTHING),
    ("options", "no_alibi", no_alibi, EVERYTHING),
    ("options", "no_sinks", no_sinks, EVERYTHING),
    ("options", "no_scale", no_scale, EVERYTHING),
    ("options", "always_causal", always_causal, EVERYTHING),
    ("canary", "in_order", in_order, EVERYTHING),
    ("canary", "values_of_layer_0", values_of_layer_0, EVERYTHING),
    ("canary", "head_by_remainder", head_by_remainder, EVERYTHING),
    ("relabelling", "depends_on_place", depends_on_place, EVERYTHING),
    ("batch", "depends_on_neighbours", depends_on_neighbours, EVERYTHING),
    (
        "batch",
        "depends_on_neighbours, not invariant",
        depends_on_neighbours,
        replace(EVERYTHING, batch_invariant=False),
    ),
    ("chunks", "offset_from_the_start", offset_from_the_start, EVERYTHING),
    ("dead_memory", "zero_times_anything", zero_times_anything, EVERYTHING),
    ("dead_memory", "sloppy_tail", sloppy_tail, replace(EVERYTHING, limits=(Limit("poison", "none"),))),
    ("tables", "peeks_at_last_column", peeks_at_last_column, EVERYTHING),
    ("write_set", "padding_wraps", padding_wraps, EVERYTHING),
    ("write_set", "loops_over_keys", loops_over_keys, EVERYTHING),
    ("write_set", "writes_a_row_too_many", writes_a_row_too_many, EVERYTHING),
    ("bounds", "wraps", wraps, EVERYTHING),
    ("empty", "nan_for_nothing", nan_for_nothing, EVERYTHING),
    ("empty", "neighbour_of_nothing", neighbour_of_nothing, EVERYTHING),
    ("empty", "needs_a_row", needs_a_row, EVERYTHING),
    ("copies", "copies_keys", copies_keys, EVERYTHING),
    ("copies", "copies_first_layer", copies_first_layer, EVERYTHING),
    ("copies", "copies_at_once", copies_at_once, EVERYTHING),
    ("copies", "copies_too_much", copies_too_much, EVERYTHING),
    ("undeclared", "ignores_options", ignores_options, PLAIN_ONLY),
]
BY_NAME = {check.name.partition(".")[2]: check for check in CHECKS}
EFFORT = replace(effort(BUDGETS["quick"], seed=0, checks=1), seconds=120.0)  # the same cases on a slow machine


@pytest.mark.parametrize(("check", "name", "kernel", "capabilities"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_a_fault_is_found_and_told(check, name, kernel, capabilities):
    outcome = search(BY_NAME[check], Subject(FaultyAdapter(kernel, capabilities)), EFFORT)
    assert outcome.failure is not None, f"{name} survives {outcome.cases} cases"
    assert outcome.failure.violation.story
    assert outcome.failure.violation.timeline is not None


def test_a_crash_is_told_as_one():
    outcome = search(BY_NAME["empty"], Subject(FaultyAdapter(needs_a_row)), EFFORT)
    assert outcome.failure.violation.message == "forward raised IndexError: no rows"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("adapter", [ReferenceAdapter(), TorchAdapter()], ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_right_kernels_pass(adapter, precision, check):
    subject = Subject(adapter, {"precision": precision})
    if reason := skip_reason(check, subject):
        pytest.skip(reason)
    outcome = search(check, subject, replace(EFFORT, examples=8))
    assert outcome.failure is None
    assert outcome.cases >= 4


@pytest.mark.parametrize("check", ["numbers", "options", "bounds", "copies"])
def test_a_case_survives_being_saved(check):
    subject = Subject(FaultyAdapter(answers(lambda out, lse, batch: (out * 0, lse))))
    case = search(BY_NAME[check], subject, EFFORT).failure.case
    again = decode(BY_NAME[check].case_type, encode(case))
    assert again == case
    assert judge(BY_NAME[check], subject, again) is not None
    assert judge(BY_NAME[check], Subject(ReferenceAdapter()), again) is None


def test_limits_and_missing_operations_are_reasons_to_skip():
    limits = (Limit("unchecked_ids", "ids are not checked"), Limit("empty_rows", "rows must not be empty"))
    capabilities = replace(EVERYTHING, limits=limits, operations=frozenset())
    subject = Subject(FaultyAdapter(FaultyKernel(), capabilities))
    reasons = {check.name: skip_reason(check, subject) for check in CHECKS}
    assert {name: reason for name, reason in reasons.items() if reason} == {
        "correctness.bounds": "ids are not checked",
        "correctness.empty": "rows must not be empty",
        "correctness.copies": "operation copy_blocks is not declared",
        "correctness.undeclared": "every shape and option is declared",
    }


def test_the_suite_can_be_listed_without_torch():
    code = "import sys, kvbench.suites.correctness; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
