"""The reference's attention, against the definition written out in loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InvalidRequest
from kvbench.interface import HOLE, AttentionOptions
from kvbench.reference.attention import attend_dense, attend_paged


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(q, keys, values, starts, options):
    """Out and lse in loops over numbers; a query's list of visible keys is made, not masked."""
    num_q_heads, head_dim = len(q[0]), len(q[0][0])
    value_dim = len(values[0][0][0])
    outs = [[[0.0] * value_dim for _ in range(num_q_heads)] for _ in q]
    lses = [list(options.sinks or [-math.inf] * num_q_heads) for _ in q]
    scale = 1 / math.sqrt(head_dim) if options.scale is None else options.scale
    for row, (k, v) in enumerate(zip(keys, values, strict=True)):
        for token in range(starts[row], starts[row + 1]):
            p = len(k) - starts[row + 1] + token
            for head in range(num_q_heads):
                logits, rows = [], []
                for j in range(len(k)):
                    if (options.causal or options.window) and j > p:
                        continue
                    if options.window and j <= p - options.window:
                        continue
                    kv_head = head // (num_q_heads // len(k[j]))
                    score = scale * sum(a * b for a, b in zip(q[token][head], k[j][kv_head], strict=True))
                    if options.softcap:
                        score = options.softcap * math.tanh(score / options.softcap)
                    if options.alibi_slopes:
                        score += options.alibi_slopes[head] * (j - p)
                    logits.append(score)
                    rows.append(v[j][kv_head])
                if not rows:
                    continue
                total = sum(math.exp(s) for s in logits)
                if options.sinks:
                    total += math.exp(options.sinks[head])
                lses[token][head] = math.log(total)
                outs[token][head] = [
                    sum(math.exp(s) / total * r[d] for s, r in zip(logits, rows, strict=True)) for d in range(value_dim)
                ]
    return torch.tensor(outs, dtype=torch.float64), torch.tensor(lses, dtype=torch.float64)


OPTIONS = {
    "plain": AttentionOptions(),
    "scale": AttentionOptions(scale=0.9),
    "non-causal": AttentionOptions(causal=False),
    "window of 1": AttentionOptions(window=1),
    "window of 3": AttentionOptions(window=3),
    "softcap": AttentionOptions(scale=2.0, softcap=1.5),
    "alibi": AttentionOptions(alibi_slopes=(0.5, 0.25, 1.0, 0.125)),
    "sinks": AttentionOptions(sinks=(1.0, -2.0, 0.0, 3.0)),
    "all": AttentionOptions(0.7, True, 2, 2.0, (0.5, 0.25, 1.0, 0.125), (1.0, -2.0, 0.0, 3.0)),
}
ROWS = [(3, 3), (5, 1), (0, 0), (4, 0), (6, 2), (2, 4), (0, 2)]
"""(seq_len, q_len): prefill, decode, empty, nothing asked, chunk, more queries than context, no context."""


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_equals_the_definition_in_loops(options, num_kv_heads):
    starts = [0, *torch.tensor([q_len for _, q_len in ROWS]).cumsum(0).tolist()]
    q = randn(starts[-1], 4, 6)
    keys = [randn(n, num_kv_heads, 6, seed=n + 1) for n, _ in ROWS]
    values = [randn(n, num_kv_heads, 3, seed=n + 10) for n, _ in ROWS]
    found = attend_dense(q, keys, values, starts, options)
    out, lse = by_hand(q.tolist(), [k.tolist() for k in keys], [v.tolist() for v in values], starts, options)
    torch.testing.assert_close(found.out, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.lse, lse, rtol=1e-12, atol=1e-12)


@st.composite
def rows_and_options(draw):
    rows = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=4))
    heads = draw(st.sampled_from([(1, 1), (4, 2), (6, 2), (5, 1)]))
    window = draw(st.none() | st.integers(1, 12))
    causal = draw(st.booleans())
    sinks = draw(st.booleans())
    options = AttentionOptions(
        causal=causal, window=window, sinks=tuple(float(h) for h in range(heads[0])) if sinks else None
    )
    return rows, heads, options, draw(st.integers(1, 7)), draw(st.integers(0, 99))


@settings(max_examples=60, deadline=None)
@given(rows_and_options())
def test_block_tables_change_nothing_and_dead_memory_is_never_read(case):
    rows, (num_q_heads, num_kv_heads), options, block_size, seed = case
    starts = [0, *torch.tensor([q_len for _, q_len in rows]).cumsum(0).tolist()]
    q = randn(starts[-1], num_q_heads, 8, seed=seed)
    keys = [randn(n, num_kv_heads, 8, seed=seed + 1) for n, _ in rows]
    values = [randn(n, num_kv_heads, 5, seed=seed + 2) for n, _ in rows]
    columns = max(-(-n // block_size) for n, _ in rows) + 1
    num_blocks = len(rows) * columns
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).view(len(rows), columns)
    tables = torch.full_like(order, 10**6)
    key_cache = torch.full((num_blocks, block_size, num_kv_heads, 8), torch.nan, dtype=torch.float64)
    value_cache = torch.full((num_blocks, block_size, num_kv_heads, 5), torch.inf, dtype=torch.float64)
    for row, (n, q_len) in enumerate(rows):
        behind = 0 if options.window is None else max(0, n - q_len - options.window + 1)
        for column in range(-(-n // block_size)):
            tables[row, column] = order[row, column] if (column + 1) * block_size > behind else HOLE
        for j in range(behind, n):
            key_cache[order[row, j // block_size], j % block_size] = keys[row][j]
            value_cache[order[row, j // block_size], j % block_size] = values[row][j]
    dense = attend_dense(q, keys, values, starts, options)
    paged = attend_paged(q, key_cache, value_cache, tables, [n for n, _ in rows], starts, options)
    torch.testing.assert_close(paged.out, dense.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(paged.lse, dense.lse, rtol=1e-12, atol=1e-12)


def test_a_row_longer_than_a_piece_of_queries_is_answered_as_one(monkeypatch):
    q, k, v = randn(9, 2, 4), randn(9, 2, 4, seed=1), randn(9, 2, 4, seed=2)
    whole = attend_dense(q, [k], [v], [0, 9])
    monkeypatch.setattr("kvbench.reference.attention.QUERIES_AT_A_TIME", 2)
    torch.testing.assert_close(attend_dense(q, [k], [v], [0, 9]).out, whole.out, rtol=1e-13, atol=1e-13)


def test_huge_scores_neither_overflow_nor_vanish():
    q, k, v = randn(2, 1, 4), randn(2, 1, 4, seed=1), randn(2, 1, 4, seed=2)
    found = attend_dense(q, [k], [v], [0, 2], AttentionOptions(scale=1e6))
    best = (q[1, 0] @ k[:, 0].T).argmax()
    torch.testing.assert_close(found.out[1], v[best])
    torch.testing.assert_close(found.lse[1, 0], 1e6 * (q[1, 0] @ k[best, 0]))


def test_tokens_of_no_row_have_no_output():
    found = attend_dense(randn(3, 1, 4), [randn(2, 1, 4)], [randn(2, 1, 4)], [0, 1])
    assert found.out[1:].abs().sum() == 0
    assert (found.lse[1:] == -torch.inf).all()
    assert found.out[0].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torchs_own_attention_is_as_far_off_as_a_narrow_evaluation(dtype):
    q, k, v = (randn(40, 4, 64, seed=seed).to(dtype) for seed in range(3))
    exact = attend_dense(q, [k], [v], [0, 40]).out
    narrow = attend_dense(q, [k], [v], [0, 40], dtype=dtype).out
    own = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True
    )[0].transpose(0, 1)
    inherent, error = (narrow.double() - exact).abs().max(), (own.double() - exact).abs().max()
    assert narrow.dtype == dtype
    assert 0 < inherent < 8 * torch.finfo(dtype).eps
    assert error < 3 * inherent


@pytest.mark.parametrize("block", [-1, 3, 2**31 - 1])
def test_a_visible_block_outside_the_pool_is_refused(block):
    cache = randn(3, 2, 1, 4)
    with pytest.raises(InvalidRequest, match=r"0\.\.2"):
        attend_paged(randn(1, 1, 4), cache, cache, torch.tensor([[0, block]]), [3], [0, 1])


def test_a_context_longer_than_its_table_is_refused():
    cache = randn(3, 2, 1, 4)
    with pytest.raises(InvalidRequest, match="needs 3 blocks of 2"):
        attend_paged(randn(1, 1, 4), cache, cache, torch.tensor([[0, 1]]), [5], [0, 1])


@pytest.mark.parametrize(
    "options",
    [AttentionOptions(window=0), AttentionOptions(softcap=0.0), AttentionOptions(sinks=(1.0,)),
     AttentionOptions(alibi_slopes=(1.0, 1.0, 1.0))],
    ids=str,
)  # fmt: skip
def test_options_without_meaning_are_refused(options):
    with pytest.raises(InvalidRequest):
        attend_dense(randn(1, 2, 4), [randn(1, 2, 4)], [randn(1, 2, 4)], [0, 1], options)


def test_dense_rows_that_no_query_sees_may_hold_anything():
    q, k, v = randn(2, 2, 4), randn(7, 1, 4, seed=1), randn(7, 1, 4, seed=2)
    clean = attend_dense(q, [k], [v], [0, 2], AttentionOptions(window=3))
    k[:3], v[:3] = torch.inf, torch.nan
    assert torch.equal(attend_dense(q, [k], [v], [0, 2], AttentionOptions(window=3)).out, clean.out)
