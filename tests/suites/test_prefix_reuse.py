import pytest

from kvbench.interface import ManagerCapabilities, Sizes
from kvbench.reference.manager import ReferenceManager
from kvbench.suites.prefix_reuse import Sharing, measure_ideal_reuse, measure_prefix_reuse
from kvbench.workloads import Request, Trace, get_trace


def trace(*requests, hash_block=512):
    return Trace("t", "made by hand", tuple(requests), hash_block)


def measured(given, declared=None, **sharing):
    """Values by metric, of the only pool size."""
    rows = measure_prefix_reuse(ReferenceManager, declared or ManagerCapabilities(), given, Sharing(**sharing))
    return {row.metric: row.value for row in rows}


TURNS = trace(
    Request(0, 1100, 50, (1, 2, 3)),
    Request(1, 1700, 50, (1, 2, 4, 5)),  # hits two blocks, 1024 of 1700 tokens
    Request(2, 512, 10, (9,)),
)


@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 32])
def test_hits_are_counted_in_the_traces_own_tokens_whatever_the_block_size(block_size):
    values = measured(TURNS, ManagerCapabilities(block_sizes=Sizes((block_size,))), pool_shares=(1.0,))
    assert values["token_hit_ratio"] == pytest.approx(1024 / (1100 + 1700 + 512))
    assert values["bytes_saved"] == 1024 * 131_072


@pytest.mark.parametrize(
    ("running", "distinct", "tables"),
    [(3, 3 + 5 + 7, 3 + (3 + 4) + (3 + 4 + 2)), (2, 3 + 5 + 6, 3 + (3 + 4) + (4 + 2)), (1, 3 + 4 + 2, 3 + 4 + 2)],
)
def test_blocks_in_the_tables_of_several_running_requests_are_memory_saved(running, distinct, tables):
    values = measured(TURNS, pool_shares=(1.0,), running=running)
    assert values["memory_saved"] == pytest.approx(1 - distinct / tables)


def test_a_pool_with_room_for_one_request_forgets_between_two_that_share():
    given = trace(Request(0, 1030, 0, (1, 2, 3)), Request(1, 1500, 0, (7, 8, 9)), Request(2, 1030, 0, (1, 2, 4)))
    tight = measured(given, pool_shares=(3 / 7,), running=1)
    assert tight["token_hit_ratio"] == 0
    assert measured(given, pool_shares=(1.0,), running=1)["token_hit_ratio"] > 0


def test_a_request_that_no_pool_can_hold_is_counted_as_refused():
    values = measured(TURNS, pool_shares=(0.3,))
    assert values["refused_requests"] == 2


def test_a_pool_for_everything_hits_what_an_infinite_cache_hits():
    given = get_trace("mooncake-conv", limit=300)
    ideal = next(row.value for row in measure_ideal_reuse(given) if row.metric == "ideal_token_hit_ratio")
    rows = measure_prefix_reuse(ReferenceManager, ManagerCapabilities(), given, Sharing(pool_shares=(0.1, 1.0)))
    small, whole = (row.value for row in rows if row.metric == "token_hit_ratio")
    assert small < whole <= ideal
    assert whole == pytest.approx(ideal, abs=0.002)  # full hits leave a whole block to compute instead of a token


def test_the_ideal_needs_no_manager():
    rows = {row.metric: row.value for row in measure_ideal_reuse(TURNS)}
    assert rows["ideal_token_hit_ratio"] == pytest.approx(1024 / 3312)
    assert rows["prompt_tokens"] == 3312
