import numpy as np
import pytest

from kvbench.workloads import Request
from kvbench.workloads.tokens import VOCABULARY, block_tokens, prompt_tokens, unique_tokens


def test_equal_prefixes_become_equal_tokens_and_nothing_else_does():
    one = prompt_tokens(Request(0, 40, 0, (7, 8, 9)), index=0, block=16, length=40)
    other = prompt_tokens(Request(0, 40, 0, (7, 8, 3)), index=1, block=16, length=40)
    assert one.shape == (40,)
    np.testing.assert_array_equal(one[:32], other[:32])
    assert not np.array_equal(one[32:], other[32:])


def test_what_no_id_covers_differs_between_requests():
    request = Request(0, 20, 0, (7,))
    one, other = (prompt_tokens(request, index, block=16, length=20) for index in (0, 1))
    assert not np.array_equal(one[16:], other[16:])


def test_a_hundred_thousand_neighbouring_ids_spell_different_smallest_blocks():
    spelled = block_tokens(np.arange(100_000, dtype=np.uint64), 4)
    assert len(np.unique(spelled, axis=0)) == 100_000
    assert spelled.min() >= 0
    assert spelled.max() < VOCABULARY


def test_a_block_too_small_to_tell_ids_apart_is_refused():
    with pytest.raises(ValueError, match="smallest is 4"):
        block_tokens(np.zeros(1, dtype=np.uint64), 3)


@pytest.mark.parametrize(("start", "count"), [(0, 200), (63, 2), (64, 64), (130, 0)])
def test_unique_tokens_depend_on_the_position_and_not_on_how_they_are_asked_for(start, count):
    whole = unique_tokens(3, 0, 400)
    np.testing.assert_array_equal(unique_tokens(3, start, count), whole[start : start + count])
