"""KV-memory arithmetic against figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.reference.memory import (
    ElementFormat,
    LayerGroup,
    attention,
    block_bytes,
    bytes_per_token,
    heads_per_rank,
    latent_attention,
    linear_attention,
    live_blocks,
    paged_bytes,
    rounding_share,
    sequence_bytes,
    sequences_that_fit,
    uniform_bytes,
)

BF16 = ElementFormat("bfloat16", 16)
KIB, GIB = 1024, 1024**3


def test_multi_head_attention_keeps_k_and_v_of_every_head_and_layer():
    opt_13b = (attention(layers=40, kv_heads=40, head_dim=128, element=BF16),)
    assert bytes_per_token(opt_13b) == 800 * KIB  # the PagedAttention paper's figure
    assert sequence_bytes(opt_13b, 2048) == 1.5625 * GIB


def test_grouped_queries_divide_the_cache_by_the_group_size():
    assert bytes_per_token((attention(32, 8, 128, BF16),)) * 4 == bytes_per_token((attention(32, 32, 128, BF16),))


def test_a_window_stops_the_growth_of_its_layers():
    full, windowed = attention(1, 1, 64, BF16), attention(3, 1, 64, BF16, window=100)
    assert bytes_per_token((full, windowed), 99) == 4 * 256
    assert bytes_per_token((full, windowed), 100) == 256
    assert bytes_per_token((full, windowed)) == 256
    assert sequence_bytes((full, windowed), 1000) == (1000 + 3 * 100) * 256
    assert uniform_bytes((full, windowed), 1000) == 4 * 1000 * 256


@pytest.mark.parametrize(
    ("length", "chunk", "blocks"),
    [
        (16, 1, 1),
        (17, 1, 2),
        (1000, 1, 9),  # 128 visible keys in 16s: 8 blocks, 9 when they start inside one
        (1000, 2, 10),  # 129 keys for two queries: 9 blocks and one more
        (1000, 256, 25),
        (100, 256, 7),  # no more than the sequence has
    ],
)
def test_a_window_holds_the_blocks_of_its_visible_keys_and_one_more(length, chunk, blocks):
    assert live_blocks(LayerGroup(token_bytes=1, window=128), length, block_size=16, chunk=chunk) == blocks


def test_a_window_never_needs_more_blocks_than_counted():
    """Every place where the window can start, counted block by block."""
    window, size = 10, 4
    for length in range(1, 60):
        visible = range(max(0, length - window), length)
        touched = {position // size for position in visible}
        assert len(touched) <= live_blocks(LayerGroup(1, window), length, size)


def test_latent_attention_keeps_one_vector_for_all_heads():
    deepseek_v3 = (latent_attention(layers=61, kv_lora_rank=512, rope_dim=64, element=BF16),)
    assert bytes_per_token(deepseek_v3) == 70_272


def test_sparse_attention_adds_an_fp8_index_key_and_its_scale():
    plain, sparse = (latent_attention(61, 512, 64, BF16, index_dim=dim) for dim in (0, 128))
    assert sparse.token_bytes - plain.token_bytes == 61 * (128 + 4)


def test_linear_attention_takes_the_same_at_every_length():
    state = linear_attention(
        layers=36, key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_width=4, element=BF16
    )
    matrices = 36 * 32 * 128 * 128 * 4
    inputs = 36 * (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert sequence_bytes((state,), 1) == sequence_bytes((state,), 10**6) == matrices + inputs == 77_266_944
    assert bytes_per_token((state,)) == 0


def test_a_quantised_cache_does_not_quantise_the_convolution_inputs():
    sizes = (
        linear_attention(1, 1, 1, 8, 8, 4, ElementFormat("any", bits)).state_bytes - 8 * 8 * 4
        for bits in (4, 8, 16, 32)
    )
    assert list(sizes) == [144, 144, 144, 288]  # 24 channels, 3 inputs, 2 or 4 bytes


@pytest.mark.parametrize(
    ("element", "head_dim", "expected"),
    [
        (ElementFormat("fp8", 8), 128, 128),
        (ElementFormat("fp8-scaled", 8, scale_bytes=4), 128, 132),
        (ElementFormat("int4", 4, scale_bytes=4, group=32), 128, 64 + 16),
        (ElementFormat("int4", 4, scale_bytes=4, group=32), 80, 40 + 12),  # the last group is not full
        (ElementFormat("int4", 4), 7, 4),  # half a byte rounds up
    ],
)
def test_scales_and_part_bytes_count(element, head_dim, expected):
    assert element.vector_bytes(head_dim) == expected


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_ranks_share_the_heads_and_keep_at_least_one(ranks, heads):
    assert heads_per_rank(8, ranks) == heads


@pytest.mark.parametrize("ranks", [0, -1, 3, 12])
def test_ranks_that_cannot_share_heads_evenly_are_refused(ranks):
    with pytest.raises(UsageError, match=rf"{ranks}.*divisor or a multiple of 8"):
        heads_per_rank(8, ranks)


def test_latent_attention_is_not_shared_out_but_linear_attention_is():
    one, two = (linear_attention(1, 4, 8, 16, 16, 4, BF16, tensor_parallel=ranks).state_bytes for ranks in (1, 2))
    assert one == 2 * two


def test_whole_blocks_cost_what_the_last_one_does_not_hold():
    group = (LayerGroup(token_bytes=10),)
    assert block_bytes(group, 16) == 160
    assert paged_bytes(group, 17, 16) == 320
    assert rounding_share(group, 17, 16) == pytest.approx(15 / 32)
    assert rounding_share(group, 32, 16) == 0


def test_sequences_that_fit_are_whole_and_never_negative():
    assert sequences_that_fit(1000, 300) == 3
    assert sequences_that_fit(299, 300) == 0
    assert sequences_that_fit(-5, 300) == 0


groups = st.builds(
    LayerGroup,
    token_bytes=st.integers(1, 4096),
    window=st.none() | st.integers(1, 300),
    state_bytes=st.integers(0, 4096),
)


@given(st.tuples(groups, groups), st.integers(1, 2000), st.integers(1, 64))
def test_blocks_hold_at_least_what_is_live_and_windows_at_most_everything(model, length, block_size):
    assert sequence_bytes(model, length) <= paged_bytes(model, length, block_size)
    assert sequence_bytes(model, length) <= uniform_bytes(model, length)
    assert 0 <= rounding_share(model, length, block_size) < 1


@given(st.tuples(groups, groups), st.integers(1, 2000))
def test_bytes_per_token_is_what_the_next_token_adds(model, length):
    assert sequence_bytes(model, length + 1) - sequence_bytes(model, length) == bytes_per_token(model, length)
