"""What the reference and torch kernels do with writes, copies and requests that no cache could serve."""

from dataclasses import replace

import pytest
import torch

from kvbench.adapters.reference import ReferenceAdapter
from kvbench.adapters.torch import TorchAdapter
from kvbench.errors import InvalidRequest, Unsupported
from kvbench.interface import FLOAT32, HOLE, NO_SLOT, AttentionOptions, Batch, CacheSpec, Precision

SPEC = CacheSpec(num_q_heads=2, num_kv_heads=1, head_dim=4, block_size=2, num_layers=2)
NUM_BLOCKS = 5


@pytest.fixture(params=[ReferenceAdapter, TorchAdapter], ids=["reference", "torch"])
def kernel(request):
    return request.param().kernel({})


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ints(*numbers, dtype=torch.int32):
    return torch.tensor(numbers, dtype=dtype)


def batch(**changes):
    """Row 0: 3 tokens, all new, in blocks 4 and 1; row 1: 2 tokens, the last one new, in block 2."""
    valid = Batch(
        q=randn(4, 2, 4),
        k=randn(4, 1, 4, seed=1),
        v=randn(4, 1, 4, seed=2),
        block_tables=torch.tensor([[4, 1], [2, 99]], dtype=torch.int32),
        seq_lens=ints(3, 2),
        query_start_loc=ints(0, 3, 4),
        slot_mapping=ints(8, 9, 2, 5, dtype=torch.int64),
    )
    return replace(valid, **changes)


def read(kernel, cache, slot, layer=0):
    """V at a slot: what a lone query sees through a window of one."""
    asked = Batch(
        q=torch.zeros(1, 2, 4), k=torch.zeros(1, 1, 4), v=torch.zeros(1, 1, 4),
        block_tables=ints(*[slot // 2] * (slot % 2 + 1)).view(1, -1)[:, :1], seq_lens=ints(slot % 2 + 1),
        query_start_loc=ints(0, 1), slot_mapping=ints(NO_SLOT, dtype=torch.int64),
        options=AttentionOptions(window=1), layer=layer,
    )  # fmt: skip
    return kernel.attend(cache, asked).out[0, 0]


def contents(cache):
    return [layer.clone() for layer in (*cache.keys, *cache.values)]


def unchanged(cache, before):
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(contents(cache), before, strict=True))


REFUSED = {
    "block past the pool": {"block_tables": torch.tensor([[4, NUM_BLOCKS], [2, 99]], dtype=torch.int32)},
    "negative block": {"block_tables": torch.tensor([[-2, 1], [2, 99]], dtype=torch.int32)},
    "hole that is read": {"block_tables": torch.tensor([[4, 1], [HOLE, 99]], dtype=torch.int32)},
    "table too narrow": {"seq_lens": ints(5, 2)},
    "slot past the pool": {"slot_mapping": ints(8, 9, 2, 2 * NUM_BLOCKS, dtype=torch.int64)},
    "slot below the pool": {"slot_mapping": ints(8, 9, -2, 5, dtype=torch.int64)},
    "slot before the context": {"seq_lens": ints(2, 2)},
    "window of none": {"options": AttentionOptions(window=0)},
    "sinks for other heads": {"options": AttentionOptions(sinks=(0.0,) * 3)},
    "layer past the last": {"layer": 2},
    "negative layer": {"layer": -1},
    "q of another dtype": {"q": randn(4, 2, 4).double()},
    "q of another shape": {"q": randn(4, 1, 4)},
    "k of another head dimension": {"k": randn(4, 1, 8)},
    "v of other length": {"v": randn(3, 1, 4)},
    "fewer k and v than q": {
        "k": randn(3, 1, 4),
        "v": randn(3, 1, 4),
        "slot_mapping": ints(8, 9, 2, dtype=torch.int64),
    },
    "fewer slots than tokens": {"slot_mapping": ints(8, 9, 2, dtype=torch.int64)},
    "slots in int32": {"slot_mapping": ints(8, 9, 2, 5)},
    "tables in int64": {"block_tables": torch.tensor([[4, 1], [2, 99]])},
    "one row too few": {"seq_lens": ints(3)},
    "negative length": {"seq_lens": ints(3, -1)},
    "starts that decrease": {"query_start_loc": ints(0, 4, 3)},
    "starts past the tokens": {"query_start_loc": ints(0, 3, 5)},
    "starts that skip": {"query_start_loc": ints(1, 3, 4)},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_a_refused_forward_writes_nothing(kernel, changes):
    cache = kernel.create(SPEC, NUM_BLOCKS)
    before = contents(cache)
    with pytest.raises(InvalidRequest):
        kernel.forward(cache, batch(**changes))
    assert unchanged(cache, before)


def test_a_hole_behind_the_window_is_accepted_and_a_write_into_it_is_not(kernel):
    cache = kernel.create(SPEC, NUM_BLOCKS)
    window = AttentionOptions(window=1)
    behind = {"block_tables": torch.tensor([[HOLE, 1], [2, 99]], dtype=torch.int32), "options": window}
    decode = batch(
        **behind, query_start_loc=ints(0, 1, 2), q=randn(2, 2, 4), k=randn(2, 1, 4), v=randn(2, 1, 4),
        slot_mapping=ints(2, 5, dtype=torch.int64),
    )  # fmt: skip
    assert torch.allclose(kernel.forward(cache, decode).out[0, 0], decode.v[0, 0])
    padded = replace(decode, query_start_loc=ints(0, 0, 0))
    assert not kernel.forward(cache, padded).out.any()
    chunk = batch(block_tables=torch.tensor([[4, HOLE], [2, 99]], dtype=torch.int32), seq_lens=ints(3, 2))
    before = contents(cache)
    with pytest.raises(InvalidRequest):
        kernel.forward(cache, chunk)
    assert unchanged(cache, before)


def test_a_token_that_nobody_sees_may_still_not_be_written_into_a_hole(kernel):
    """A row of no context left visible: the only query sees its own position, the first token's block is a hole."""
    cache = kernel.create(SPEC, NUM_BLOCKS)
    seen = batch(
        block_tables=torch.tensor([[HOLE, 1]], dtype=torch.int32), seq_lens=ints(3), query_start_loc=ints(0, 2),
        q=randn(2, 2, 4), k=randn(2, 1, 4), v=randn(2, 1, 4), slot_mapping=ints(9, 2, dtype=torch.int64),
        options=AttentionOptions(window=1),
    )  # fmt: skip
    with pytest.raises(InvalidRequest):
        kernel.forward(cache, seen)


@pytest.mark.parametrize(("window", "legal"), [(None, False), (3, False), (2, False), (1, True)])
def test_a_hole_is_read_over_only_where_the_window_has_left_the_whole_block(kernel, window, legal):
    """A decode at position 2 of blocks of 2: only a window of 1 leaves block 0 behind."""
    cache = kernel.create(SPEC, NUM_BLOCKS)
    kernel.write(cache, randn(10, 1, 4), randn(10, 1, 4, seed=1), torch.arange(10))
    asked = batch(
        q=randn(1, 2, 4), block_tables=torch.tensor([[HOLE, 1]], dtype=torch.int32), seq_lens=ints(3),
        query_start_loc=ints(0, 1), options=AttentionOptions(window=window),
    )  # fmt: skip
    if legal:
        assert torch.allclose(kernel.attend(cache, asked).out[0, 0], randn(10, 1, 4, seed=1)[2, 0])
    else:
        with pytest.raises(InvalidRequest, match=r"block_tables\[0, 0\] is -1"):
            kernel.attend(cache, asked)


def test_padding_is_written_nowhere(kernel):
    cache = kernel.create(SPEC, NUM_BLOCKS)
    before = contents(cache)
    kernel.write(cache, randn(3, 1, 4), randn(3, 1, 4), ints(NO_SLOT, NO_SLOT, dtype=torch.int64))
    assert unchanged(cache, before)
    v = randn(3, 1, 4, seed=3)
    kernel.write(cache, randn(3, 1, 4), v, ints(NO_SLOT, 3, dtype=torch.int64), layer=1)
    assert unchanged_slots(cache, before) == {(1, 3)}
    k = torch.zeros(2, 1, 4)
    kernel.write(cache, k, v[:2], ints(2, 4, dtype=torch.int64), layer=1)
    assert torch.equal(read(kernel, cache, 4, layer=1), v[1, 0])


def unchanged_slots(cache, before):
    """(layer, slot) of every row that differs from before."""
    changed = set()
    for index, (new, old) in enumerate(zip(contents(cache), before, strict=True)):
        rows = (new.nan_to_num(7.0) != old.nan_to_num(7.0)).view(-1, 4).any(1).nonzero().flatten().tolist()
        changed |= {(index % SPEC.num_layers, row) for row in rows}
    return changed


def test_slots_past_the_pool_are_refused_by_write(kernel):
    cache = kernel.create(SPEC, NUM_BLOCKS)
    before = contents(cache)
    with pytest.raises(InvalidRequest, match=r"slot 10 .* 0\.\.9"):
        kernel.write(cache, randn(2, 1, 4), randn(2, 1, 4), ints(0, 10, dtype=torch.int64))
    assert unchanged(cache, before)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [([(0, 1), (2, 3)], [0, 0, 2, 2, 4]), ([(0, 1), (1, 2)], [0, 0, 0, 3, 4]), ([(1, 2), (0, 1)], [0, 0, 1, 3, 4]),
     ([(0, 2), (1, 2)], [0, 1, 1, 3, 4]), ([(0, 0)], [0, 1, 2, 3, 4]), ([], [0, 1, 2, 3, 4])],
    ids=str,
)  # fmt: skip
def test_blocks_of_all_layers_are_copied_in_order(kernel, pairs, expected):
    cache = kernel.create(SPEC, NUM_BLOCKS)
    k, v = randn(10, 1, 4), randn(10, 1, 4, seed=1)
    for layer in range(2):
        kernel.write(cache, k + layer, v + layer, torch.arange(10), layer)
    kernel.copy_blocks(cache, pairs)
    for layer in range(2):
        for block, source in enumerate(expected):
            keys = cache.keys[layer].reshape(NUM_BLOCKS, 2, 1, 4)[block]
            values = cache.values[layer].reshape(NUM_BLOCKS, 2, 1, 4)[block]
            assert torch.equal(keys, k[2 * source : 2 * source + 2] + layer)
            assert torch.equal(values, v[2 * source : 2 * source + 2] + layer)


def test_a_copy_outside_the_pool_copies_nothing(kernel):
    cache = kernel.create(SPEC, NUM_BLOCKS)
    kernel.write(cache, randn(10, 1, 4), randn(10, 1, 4), torch.arange(10))
    before = contents(cache)
    with pytest.raises(InvalidRequest, match="block 5"):
        kernel.copy_blocks(cache, [(0, 1), (2, NUM_BLOCKS)])
    assert unchanged(cache, before)


@pytest.mark.parametrize("storage", ["uint8", "int8", "float8_e4m3fn"])
def test_undeclared_storage_is_unsupported(kernel, storage):
    with pytest.raises(Unsupported, match=storage):
        kernel.create(replace(SPEC, precision=Precision("p", "float32", storage)), 1)


@pytest.mark.parametrize("change", [{"num_q_heads": 3, "num_kv_heads": 2}, {"block_size": 0}, {"head_dim": 0}], ids=str)
def test_a_cache_that_cannot_exist_is_refused(kernel, change):
    with pytest.raises(InvalidRequest):
        kernel.create(replace(SPEC, precision=FLOAT32, **change), 4)


def test_an_empty_batch_has_an_empty_answer(kernel):
    empty = batch(
        q=randn(0, 2, 4), k=randn(0, 1, 4), v=randn(0, 1, 4), block_tables=torch.zeros(0, 0, dtype=torch.int32),
        seq_lens=ints(), query_start_loc=ints(0), slot_mapping=ints(dtype=torch.int64),
    )  # fmt: skip
    assert kernel.forward(kernel.create(SPEC, NUM_BLOCKS), empty).out.shape == (0, 2, 4)
