"""The reference kernel: what rests in its cache, and what it makes of it."""

import itertools

import pytest
import torch

from kvbench.interface import BFLOAT16, FLOAT16, FLOAT32, AttentionOptions, Batch, CacheSpec
from kvbench.reference.attention import attend_dense
from kvbench.reference.kernel import ReferenceKernel
from kvbench.reference.quantise import round_trip


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16, FLOAT16], ids=lambda p: p.name)
def test_a_prompt_in_chunks_equals_dense_attention_over_what_storage_keeps(precision):
    spec = CacheSpec(4, 2, 16, 3, precision, head_dim_v=8)
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, precision.compute)
    q, k, v = (torch.randn(11, h, d, generator=generator).to(dtype) for h, d in ((4, 16), (2, 16), (2, 8)))
    table = torch.tensor([[6, 0, 3, 5]], dtype=torch.int32)
    kernel = ReferenceKernel()
    cache = kernel.create(spec, 7)
    outs, lses = [], []
    for begin, end in itertools.pairwise([0, 4, 5, 5, 11]):
        positions = torch.arange(begin, end)
        slots = table[0, positions // 3].long() * 3 + positions % 3
        starts = torch.tensor([0, end - begin], dtype=torch.int32)
        seq_lens = torch.tensor([end], dtype=torch.int32)
        options = AttentionOptions(window=6)
        chunk = Batch(q[begin:end], k[begin:end], v[begin:end], table, seq_lens, starts, slots, options)
        found = kernel.forward(cache, chunk)
        outs.append(found.out)
        lses.append(found.lse)
    kept = [round_trip(x, precision) for x in (k, v)]
    dense = attend_dense(q, [kept[0]], [kept[1]], [0, 11], AttentionOptions(window=6))
    assert outs[0].dtype == dtype
    torch.testing.assert_close(torch.cat(outs), dense.out.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    torch.testing.assert_close(torch.cat(lses), dense.lse)


def test_a_row_that_was_never_written_shows_as_nan():
    kernel = ReferenceKernel()
    cache = kernel.create(CacheSpec(1, 1, 4, 2), 2)
    one = torch.ones(1, 1, 4)
    starts, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    table = torch.tensor([[1]], dtype=torch.int32)
    found = kernel.forward(cache, Batch(one, one, one, table, lengths, starts, torch.tensor([3])))
    assert found.out.isnan().all()


def test_a_row_has_the_same_bits_whatever_its_neighbours_are():
    spec, generator = CacheSpec(4, 2, 24, 4), torch.Generator().manual_seed(1)
    kernel = ReferenceKernel()
    cache = kernel.create(spec, 40)
    k, v = (torch.randn(160, 2, 24, generator=generator) for _ in range(2))
    kernel.write(cache, k, v, torch.arange(160))
    q = torch.randn(20, 4, 24, generator=generator)
    rows = [(30, 7), (3, 3), (40, 1), (0, 0), (17, 9)]
    tables = torch.randperm(40, generator=generator).view(4, 10)[[0, 1, 2, 2, 3]].int()

    def attend(chosen):
        starts = list(itertools.accumulate((q_len for _, q_len in rows), initial=0))
        queries = torch.cat([q[starts[row] : starts[row + 1]] for row in chosen])
        begin = torch.tensor([0, *itertools.accumulate(rows[row][1] for row in chosen)], dtype=torch.int32)
        lengths = torch.tensor([rows[row][0] for row in chosen], dtype=torch.int32)
        unused = torch.zeros(len(queries), 2, 24)
        slots = torch.full((len(queries),), -1)
        return kernel.attend(cache, Batch(queries, unused, unused, tables[chosen], lengths, begin, slots)).out

    together = attend([0, 1, 2, 3, 4]).split([q_len for _, q_len in rows])
    for row in range(5):
        assert torch.equal(attend([row]), together[row])
    assert torch.equal(attend([4, 2, 0]), torch.cat([together[4], together[2], together[0]]))
