"""The torch adapter against the reference kernel, through the adapters' own interface."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.adapters.reference import ReferenceAdapter
from kvbench.adapters.torch import TorchAdapter
from kvbench.interface import BFLOAT16, FLOAT16, FLOAT32, HOLE, NO_SLOT, AttentionOptions, Batch, CacheSpec
from kvbench.reference.attention import attend_dense, first_visible

MIXED = ((17, 17), (33, 1), (0, 0), (9, 0), (40, 5), (1, 1), (21, 1), (3, 1))
"""(seq_len, q_len): prefills, decodes of unequal length, nothing at all, nothing asked, a chunk."""


def make_batch(spec, rows, options=AttentionOptions(), seed=0):  # noqa: B008
    """A pool whose every dead slot is poison, the K/V of the context that it holds already, and the batch."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, spec.precision.compute)

    def randn(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    bs, tokens = spec.block_size, sum(q_len for _, q_len in rows)
    columns = max(-(-n // bs) for n, _ in rows) + 1
    num_blocks = len(rows) * columns + 2
    order = torch.randperm(num_blocks, generator=generator)[: len(rows) * columns].view(len(rows), columns)
    tables, slots, context = torch.full_like(order, 2**30, dtype=torch.int32), [], []
    for row, (n, q_len) in enumerate(rows):
        behind = first_visible(n, q_len, options)
        for column in range(-(-n // bs)):
            gone = (column + 1) * bs <= behind and (column + 1) * bs <= n - q_len
            tables[row, column] = HOLE if gone else order[row, column]
        place = [int(order[row, j // bs]) * bs + j % bs for j in range(n)]
        context += place[behind : n - q_len]
        slots += [NO_SLOT] * max(0, q_len - n) + place[max(0, n - q_len) :]
    batch = Batch(
        q=randn(tokens, spec.num_q_heads, spec.head_dim),
        k=randn(tokens, spec.num_kv_heads, spec.head_dim),
        v=randn(tokens, spec.num_kv_heads, spec.value_dim),
        block_tables=tables,
        seq_lens=torch.tensor([n for n, _ in rows], dtype=torch.int32),
        query_start_loc=torch.tensor([0, *itertools.accumulate(q_len for _, q_len in rows)], dtype=torch.int32),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        options=options,
    )
    k = randn(len(context), spec.num_kv_heads, spec.head_dim)
    v = randn(len(context), spec.num_kv_heads, spec.value_dim)
    return batch, num_blocks, (k, v, torch.tensor(context, dtype=torch.int64))


def poisoned(kernel, spec, num_blocks):
    cache = kernel.create(spec, num_blocks)
    for value, layers in ((torch.nan, cache.keys), (torch.inf, cache.values)):
        for layer in layers:
            layer.fill_(value)
    return cache


def both(spec, rows, options=AttentionOptions(), seed=0):  # noqa: B008
    """What the reference and the torch adapter answer."""
    batch, num_blocks, context = make_batch(spec, rows, options, seed)
    results = []
    for adapter in (ReferenceAdapter(), TorchAdapter()):
        kernel = adapter.kernel({})
        cache = poisoned(kernel, spec, num_blocks)
        kernel.write(cache, *context)
        results.append(kernel.forward(cache, batch))
    return results


def assert_same(expected, found, dtype):
    """To the rounding of the output: both see the same rounded K/V, and scores here stay below some 30 in size."""
    eps = torch.finfo(dtype).eps
    assert found.out.dtype == expected.out.dtype == dtype
    torch.testing.assert_close(found.out, expected.out, rtol=2 * eps, atol=64 * torch.finfo(torch.float32).eps)
    torch.testing.assert_close(found.lse.double(), expected.lse, rtol=1e-5, atol=1e-5)


OPTIONS = {
    "plain": AttentionOptions(),
    "scale": AttentionOptions(scale=0.9),
    "non-causal": AttentionOptions(causal=False),
    "window of 1": AttentionOptions(window=1),
    "window of 7": AttentionOptions(window=7),
    "softcap": AttentionOptions(softcap=0.7),
    "alibi": AttentionOptions(alibi_slopes=(0.5, 0.25, 1.0, 0.125)),
    "sinks": AttentionOptions(sinks=(1.0, -2.0, 0.0, 3.0)),
    "all": AttentionOptions(0.7, True, 6, 2.0, (0.5, 0.25, 1.0, 0.125), (1.0, -2.0, 0.0, 3.0)),
}


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16, FLOAT16], ids=lambda p: p.name)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_equals_the_reference_in_every_option_and_precision(options, precision):
    expected, found = both(CacheSpec(4, 2, 32, 8, precision), MIXED, options)
    assert_same(expected, found, getattr(torch, precision.compute))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 1, 1, 2, 9])).map(lambda r: (max(r), r[1])),
        min_size=1,
        max_size=6,
    ),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (5, 1), (7, 7)]),
    dims=st.sampled_from([(8, 8), (16, 5), (3, 40)]),
    block_size=st.sampled_from([1, 2, 3, 16, 64]),
    window=st.none() | st.integers(1, 20),
    causal=st.booleans(),
    width=st.sampled_from([64, 3, 1]),
    seed=st.integers(0, 99),
)
def test_equals_the_reference_at_any_shape_and_width_of_piece(
    rows, heads, dims, block_size, window, causal, width, seed
):
    spec = CacheSpec(*heads, dims[0], block_size, head_dim_v=dims[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvbench.adapters.torch_kernel.TorchCache.keys_at_a_time", width)
        patch.setattr("kvbench.adapters.torch_kernel.QUERIES_AT_A_TIME", 4)
        expected, found = both(spec, rows, AttentionOptions(causal=causal, window=window), seed)
    assert_same(expected, found, torch.float32)


@pytest.mark.parametrize("causal", [True, False])
def test_queries_before_the_context_see_nothing_unless_attention_is_not_causal(causal):
    asked = Batch(
        q=torch.randn(7, 2, 8, generator=torch.Generator().manual_seed(0)),
        k=torch.zeros(7, 1, 8),
        v=torch.zeros(7, 1, 8),
        block_tables=torch.tensor([[3, 1]], dtype=torch.int32),
        seq_lens=torch.tensor([5], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 7], dtype=torch.int32),
        slot_mapping=torch.full((7,), NO_SLOT),
        options=AttentionOptions(causal=causal),
    )
    k, v = torch.randn(2, 5, 1, 8, generator=torch.Generator().manual_seed(1))
    results = []
    for adapter in (ReferenceAdapter(), TorchAdapter()):
        kernel = adapter.kernel({})
        cache = kernel.create(CacheSpec(2, 1, 8, 4), 4)
        kernel.write(cache, k, v, torch.tensor([12, 13, 14, 15, 4]))
        results.append(kernel.forward(cache, asked))
    assert_same(*results, torch.float32)
    assert (results[1].lse[:2] == -torch.inf).all() == causal
    assert results[1].lse[2:].isfinite().all()


@pytest.mark.parametrize("precision", [BFLOAT16, FLOAT16], ids=lambda p: p.name)
def test_error_stays_within_what_the_data_type_costs(precision):
    spec, n = CacheSpec(4, 2, 64, 16, precision), 300
    batch, num_blocks, _ = make_batch(spec, [(n, n)])
    kernel = TorchAdapter().kernel({})
    found = kernel.forward(kernel.create(spec, num_blocks), batch).out.double()
    exact = attend_dense(batch.q, [batch.k], [batch.v], [0, n]).out
    narrow = attend_dense(batch.q, [batch.k], [batch.v], [0, n], dtype=batch.q.dtype).out.double()
    assert (found - exact).abs().max() <= (narrow - exact).abs().max()


def test_a_plan_answers_again_and_again_as_forward_does():
    spec = CacheSpec(4, 2, 16, 4)
    batch, num_blocks, context = make_batch(spec, MIXED)
    kernel = TorchAdapter().kernel({})
    cache = poisoned(kernel, spec, num_blocks)
    kernel.write(cache, *context)
    planned = kernel.plan(cache, batch)
    first, second, once = planned(), planned(), kernel.forward(cache, batch)
    assert torch.equal(first.out, once.out)
    assert torch.equal(second.out, once.out)


def test_layers_do_not_touch_each_other():
    spec = CacheSpec(2, 1, 8, 4, num_layers=2)
    batch, num_blocks, _ = make_batch(spec, [(6, 6)])
    kernel = TorchAdapter().kernel({})
    cache = kernel.create(spec, num_blocks)
    kernel.forward(cache, batch)
    assert not cache.keys[1].any()
    second = kernel.forward(cache, replace(batch, v=batch.v + 1, layer=1))
    torch.testing.assert_close(second.out, kernel.attend(cache, batch).out + 1)


def test_importing_the_adapter_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, kvbench.adapters.torch, kvbench.adapters.reference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
