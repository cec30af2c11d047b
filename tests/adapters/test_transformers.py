"""transformers' PagedAttentionCache as a manager: prefix hits, forks, refusals."""

import pytest

pytest.importorskip("transformers")

from kvbench.adapters.transformers import LARGEST_TOKEN, TransformersAdapter, TransformersManager
from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence, Unsupported
from kvbench.interface import GroupSpec, PoolSpec

pytestmark = pytest.mark.engine


def manager(num_blocks=8, block_size=4, **pool):
    made = TransformersAdapter().manager(PoolSpec(num_blocks, block_size, **pool), {})
    assert isinstance(made, TransformersManager)
    return made


def test_two_blocks_are_kept_for_padding():
    cache = manager()
    assert (cache.usable_blocks, cache.free_blocks) == (6, 6)
    cache.begin("a", [1] * 24)
    assert sorted(cache.block_table("a")) == [2, 3, 4, 5, 6, 7]
    cache.free("a")
    assert cache.free_blocks == 6


def test_a_committed_prefix_is_hit_up_to_a_whole_block():
    cache = manager()
    cache.begin("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    cache.commit("a", 9)
    shared = list(cache.block_table("a"))[:2]
    assert cache.begin("b", [1, 2, 3, 4, 5, 6, 7, 8, 0]) == 8
    assert list(cache.block_table("b"))[:2] == shared
    cache.free("a")
    cache.free("b")
    assert cache.free_blocks == 6
    assert cache.begin("c", [1, 2, 3, 4, 9]) == 4


def test_without_prefix_caching_nothing_is_hit():
    cache = manager(prefix_caching=False)
    cache.begin("a", [1] * 9)
    cache.commit("a", 9)
    assert cache.begin("b", [1] * 9) == 0


def test_uncommitted_tokens_are_not_hit():
    cache = manager()
    cache.begin("a", [1, 2, 3, 4, 5])
    assert cache.begin("b", [1, 2, 3, 4, 5]) == 0


def test_unused_cached_blocks_make_room():
    cache = manager()
    cache.begin("a", [1] * 24)
    cache.commit("a", 24)
    cache.free("a")
    assert cache.free_blocks == 6
    assert cache.begin("b", [2] * 24) == 0


def test_a_fork_shares_full_blocks_and_copies_the_tail():
    cache = manager()
    cache.begin("a", [1, 2, 3, 4, 5])
    cache.commit("a", 5)
    cache.fork("a", "b")
    (copy,) = cache.take_copies()
    assert copy.source == cache.block_table("a")[1]
    assert copy.target == cache.block_table("b")[1]
    assert cache.block_table("a")[0] == cache.block_table("b")[0]
    assert not cache.take_copies()


def test_a_refusal_leaves_everything_as_it_was():
    cache = manager()
    cache.begin("a", [1, 2, 3, 4, 5])
    cache.commit("a", 5)
    before = (list(cache.block_table("a")), cache.free_blocks)
    with pytest.raises(OutOfBlocks, match="free a sequence first"):
        cache.begin("b", [1, 2, 3, 4, *range(10, 30)])  # a hit, and then no room
    with pytest.raises(OutOfBlocks):
        cache.extend("a", [1] * 20)
    assert (list(cache.block_table("a")), cache.free_blocks) == before
    with pytest.raises(UnknownSequence):
        cache.free("b")


def test_misuse_and_what_it_cannot_do_are_refused():
    cache = manager()
    cache.begin("a", [1])
    with pytest.raises(UnknownSequence, match="'a' is running already"):
        cache.begin("a", [1])
    with pytest.raises(UnknownSequence, match="'a' is running already"):
        cache.fork("a", "a")
    with pytest.raises(UnknownSequence, match="'x' is not running"):
        cache.extend("x", [1])
    with pytest.raises(InvalidRequest, match="length 2 is not within the 1 tokens"):
        cache.commit("a", 2)
    with pytest.raises(Unsupported, match="namespace 'n'"):
        cache.begin("b", [1], "n")
    with pytest.raises(Unsupported, match="speculative"):
        cache.extend("a", [2], speculative=True)
    with pytest.raises(Unsupported, match=f"token id {LARGEST_TOKEN + 1} is over"):
        cache.begin("b", [LARGEST_TOKEN + 1])
    with pytest.raises(Unsupported, match="one group of full attention"):
        TransformersManager(PoolSpec(8, 4, (GroupSpec(4),)))
    with pytest.raises(InvalidRequest, match="keeps 2 blocks for itself"):
        TransformersManager(PoolSpec(2, 4))
