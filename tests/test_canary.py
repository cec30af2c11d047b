"""The content canary: rows can be told apart, probes read the row they aim at, and misreads are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kvbench.canary import (
    RowBook,
    chain_identities,
    distinct_codes,
    key_codes,
    misreads,
    probe_multiple,
    probe_positions,
    probe_queries,
    reliable_rows,
    turns_to_cover,
    unwritten_identities,
    value_digits,
)

HEADS_Q, HEADS_KV = 6, 2


def attend(queries, keys, values, dtype=torch.float32):
    """Dense attention of every query over all rows. queries: [t, hq, d]; keys, values: [n, hk, d]."""
    q, k, v = (torch.from_numpy(rows).to(dtype) for rows in (queries, keys, values))
    ratio = q.shape[1] // k.shape[1]
    scores = torch.einsum("thd,nhd->htn", q, k.repeat_interleave(ratio, 1)) * q.shape[-1] ** -0.5
    weights = torch.softmax(scores.float(), -1).to(dtype)
    return torch.einsum("htn,nhd->thd", weights, v.repeat_interleave(ratio, 1)).float().numpy()


def read_all(ids, head_dim, dtype=torch.float32, layer=0, written=None, value_dim=None):
    """Probe every row of `ids` and decode; `written` are the identities that the memory really holds."""
    written = ids if written is None else written
    keys, values = key_codes(written, HEADS_KV, head_dim, layer), value_digits(written, HEADS_KV, value_dim or head_dim)
    ratio, found = HEADS_Q // HEADS_KV, []
    book = RowBook(HEADS_KV, value_dim or head_dim)
    book.add_sequence(ids, "a")
    for turn in range(turns_to_cover(len(ids), HEADS_Q, HEADS_KV)):
        positions = probe_positions([0], [len(ids)], HEADS_Q, HEADS_KV, turn)
        assert len(set(positions[0, :ratio])) == min(ratio, len(ids))
        expected = np.asarray(ids, dtype=np.uint64)[positions]
        alone = distinct_codes(expected, written, head_dim)
        out = attend(probe_queries(expected, HEADS_KV, head_dim, len(ids), layer), keys, values, dtype)
        found += [miss for miss in misreads(out, expected, book) if alone[miss.token, miss.head]]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("head_dim", "rows"), [(16, 20), (32, 90), (40, 200), (64, 300), (80, 100), (256, 100)])
def test_every_row_of_a_context_is_read_back_in_every_dtype(dtype, head_dim, rows):
    assert read_all(chain_identities(range(rows)), head_dim, dtype) == []


def test_a_value_dim_of_its_own_is_read_back():
    assert read_all(chain_identities(range(50)), 64, value_dim=24) == []


def test_a_row_that_was_swapped_with_another_is_named():
    ids = chain_identities(range(40))
    written = [*ids]
    written[7] = ids[23]
    found = read_all(ids, 64, written=written)
    assert {miss.expected for miss in found} == {ids[7]}


def test_a_wrong_value_names_the_row_that_was_taken():
    ids = chain_identities(range(40))
    keys, values = key_codes(ids, HEADS_KV, 64), value_digits(ids, HEADS_KV, 64)
    values[7] = values[23]
    book = RowBook(HEADS_KV, 64)
    book.add_sequence(ids, "a")
    expected = np.full((1, HEADS_Q), ids[7], dtype=np.uint64)
    found = misreads(attend(probe_queries(expected, HEADS_KV, 64, 40), keys, values), expected, book)
    assert len(found) == HEADS_Q
    assert {(miss.found, miss.words) for miss in found} == {(ids[23], "position 23 of a")}


def test_a_row_of_another_head_or_layer_is_named_with_its_place():
    ids = chain_identities(range(5))
    book = RowBook(HEADS_KV, 64, num_layers=2)
    book.add_sequence(ids, "a")
    expected = np.full((1, HEADS_Q), ids[3], dtype=np.uint64)
    other_layer = value_digits(ids, HEADS_KV, 64, layer=1)[3:4].repeat(3, axis=1)
    assert misreads(other_layer, expected, book)[0].words == "position 3 of a from layer 1"
    swapped = value_digits(ids, HEADS_KV, 64)[3:4, ::-1].repeat(3, axis=1)
    assert misreads(swapped, expected, book)[0].words == "position 3 of a from KV head 1 instead of 0"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda rows: rows * 0, "zeros"),
        (lambda rows: rows * math.nan, "64 of 64 elements that are not finite"),
        (lambda rows: rows / 2 + 0.25, "a mixture of rows"),
        (
            lambda rows: np.concatenate([rows[..., :60], -rows[..., 60:] - 1], -1),
            "the right row but for elements 60-63",
        ),
    ],
)
def test_what_is_no_row_at_all_is_described(spoil, words):
    ids = chain_identities(range(5))
    book = RowBook(HEADS_KV, 64)
    book.add_sequence(ids, "a")
    expected = np.full((1, HEADS_Q), ids[3], dtype=np.uint64)
    right = value_digits(ids, HEADS_KV, 64)[3:4].repeat(3, axis=1)
    assert misreads(right, expected, book) == []
    assert misreads(spoil(right), expected, book)[0].words == words


def test_digits_survive_eight_bit_codes_and_fp8():
    digits = value_digits(chain_identities(range(200)), HEADS_KV, 64)
    low, high = digits.min(-1, keepdims=True), digits.max(-1, keepdims=True)
    step = (high - low) / 255
    assert (np.rint(np.rint((digits - low) / step) * step + low) == digits).all()
    fp8 = torch.from_numpy(digits).to(torch.float8_e4m3fn).float().numpy()
    assert (fp8 == digits).all()


def test_identities_depend_on_prefix_position_and_namespace():
    assert chain_identities([5, 5])[0] != chain_identities([5, 5])[1]
    assert chain_identities([1, 2])[1] != chain_identities([3, 2])[1]
    assert chain_identities([1], "a") != chain_identities([1], "b") != chain_identities([1])
    assert unwritten_identities([1], 0) != unwritten_identities([1], 1)
    several = [*chain_identities(range(1000)), *chain_identities(range(1000), "a"), *unwritten_identities(range(1000))]
    assert len(set(several)) == 3000


def test_a_short_code_that_two_rows_share_is_not_probed():
    ids = list(range(100))
    alone = distinct_codes(ids, ids, 8)
    codes = [tuple(code) for code in key_codes(ids, 1, 8)[:, 0]]
    assert not alone.all()
    assert alone.tolist() == [codes.count(code) == 1 for code in codes]


def test_no_rows_have_no_codes():
    assert key_codes([], 2, 64).shape == (0, 2, 64)
    assert value_digits([], 2, 24).shape == (0, 2, 24)


def test_probes_stay_in_the_range_of_float16():
    for head_dim in (16, 32, 64, 128, 256, 576):
        for rows in (1, 100, 10_000):
            assert probe_multiple(head_dim, rows) * head_dim < 2**15
    assert reliable_rows(64) > 1_000_000 > reliable_rows(32) > 50 > reliable_rows(16)


def test_positions_cover_every_row_and_only_visible_ones():
    seen = {int(p) for turn in range(5) for p in probe_positions([3], [10], 4, 2, turn)[0, :2]}
    assert seen == set(range(3, 13))
    assert (probe_positions([0, 0], [0, 2], 4, 2)[0] == -1).all()
