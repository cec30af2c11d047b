import pytest

from kvbench.errors import UsageError
from kvbench.workloads import Request, Trace, coarsened, ideal_reuse


def trace(*requests, hash_block=10):
    return Trace("t", "made by hand", tuple(requests), hash_block)


def test_an_infinite_cache_hits_the_longest_prefix_seen_before():
    reuse = ideal_reuse(
        trace(
            Request(0, 25, 0, (1, 2, 3)),  # nothing is cached
            Request(1, 40, 0, (1, 2, 4, 5)),  # 20 of 40
            Request(2, 30, 0, (9, 2, 3)),  # ids 2 and 3 stand behind another prefix: nothing
        )
    )
    assert (reuse.prompt_tokens, reuse.hit_tokens) == (95, 20)
    assert reuse.ratio == pytest.approx(20 / 95)


def test_a_prompt_seen_before_still_leaves_one_token_to_compute():
    reuse = ideal_reuse(trace(Request(0, 20, 0, (1, 2)), Request(1, 20, 0, (1, 2))))
    assert reuse.hit_tokens == 19


def test_distinct_tokens_count_shared_blocks_once_and_outputs_always():
    # 3 blocks for the ids 1, 2, 3; the first output fills the 5 left of block 2; the second needs a block of its own.
    reuse = ideal_reuse(trace(Request(0, 15, 5, (1, 2)), Request(1, 20, 5, (1, 3))))
    assert reuse.distinct_tokens == 40


def test_prompt_behind_the_last_id_is_shared_with_nobody():
    reuse = ideal_reuse(trace(Request(0, 30, 0, (1,)), Request(1, 30, 0, (1,))))
    assert (reuse.hit_tokens, reuse.distinct_tokens) == (10, 50)


def test_a_trace_without_identity_says_where_to_find_one():
    with pytest.raises(UsageError, match="mooncake-conv"):
        ideal_reuse(trace(Request(0, 30, 0), hash_block=None))


def test_coarser_blocks_keep_only_hits_that_fill_them():
    fine = trace(Request(0, 50, 0, (1, 2, 3, 4, 5)), Request(1, 50, 0, (1, 2, 3, 7, 8)))
    coarse = coarsened(fine, 2)
    assert coarse.hash_block == 20
    assert [request.hash_ids for request in coarse.requests] == [(2, 4, 5), (2, 7, 8)]
    assert (ideal_reuse(fine).hit_tokens, ideal_reuse(coarse).hit_tokens) == (30, 20)
