"""What the contiguous adapter promises beyond what the suites check."""

from __future__ import annotations

import pytest

from kvbench.adapters.contiguous import ContiguousAdapter, ContiguousManager
from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence, Unsupported
from kvbench.interface import CacheManager, Copy, GroupSpec, PoolSpec, Preempts, Truncates


def manager(
    num_blocks: int = 10, block_size: int = 4, max_length: int = 16, policy: str = "reserve-max"
) -> ContiguousManager:
    made = ContiguousAdapter().manager(PoolSpec(num_blocks, block_size, max_length=max_length), {"policy": policy})
    assert isinstance(made, ContiguousManager)
    return made


def test_it_offers_what_it_declares() -> None:
    for protocol in (CacheManager, Truncates, Preempts):
        assert isinstance(manager(), protocol)


def test_a_sequence_reserves_its_longest_length_and_shows_the_blocks_it_needs() -> None:
    cache = manager()
    assert cache.usable_blocks == 8  # two reservations of four blocks; two blocks are left over
    assert cache.begin("a", [1]) == 0
    assert cache.begin("b", [1] * 9) == 0
    assert list(cache.block_table("a")) == [0]
    assert list(cache.block_table("b")) == [4, 5, 6]
    assert cache.free_blocks == 0
    with pytest.raises(OutOfBlocks):
        cache.begin("c", [])
    cache.free("a")
    assert cache.begin("c", []) == 0


def test_a_reserved_sequence_grows_to_the_longest_length_and_no_further() -> None:
    cache = manager()
    cache.begin("a", [1])
    for _ in range(15):
        cache.extend("a", [1])
    assert list(cache.block_table("a")) == [0, 1, 2, 3]
    with pytest.raises(InvalidRequest, match="17 tokens; max_length is 16"):
        cache.extend("a", [1])


def test_a_pool_smaller_than_the_longest_length_is_reserved_as_a_whole() -> None:
    cache = manager(num_blocks=2)
    cache.begin("a", [1])
    assert cache.free_blocks == 0
    cache.extend("a", [1] * 7)
    with pytest.raises(OutOfBlocks):
        cache.extend("a", [1])
    assert list(cache.block_table("a")) == [0, 1]


def test_a_buddy_sequence_owes_copies_when_it_moves() -> None:
    cache = manager(num_blocks=8, max_length=64, policy="buddy")
    cache.begin("a", [1] * 4)
    cache.begin("b", [1] * 4)
    cache.extend("a", [1] * 2)
    assert list(cache.block_table("a")) == [2, 3]
    assert cache.take_copies() == [Copy(0, 2)]
    assert cache.take_copies() == []
    cache.free("a")
    cache.free("b")
    assert cache.free_blocks == 8


def test_truncating_keeps_the_reservation() -> None:
    cache = manager(num_blocks=8, policy="buddy")
    cache.begin("a", [1] * 13)
    cache.truncate("a", 2)
    assert list(cache.block_table("a")) == [0]
    assert cache.free_blocks == 4
    cache.extend("a", [1] * 12)
    assert list(cache.block_table("a")) == [0, 1, 2, 3]
    assert cache.take_copies() == []


def test_a_preempted_sequence_starts_over() -> None:
    cache = manager()
    cache.begin("a", [1] * 9)
    cache.preempt("a")
    assert cache.free_blocks == cache.usable_blocks
    with pytest.raises(InvalidRequest):
        cache.extend("a", [1])
    assert cache.resume("a") == 0
    assert list(cache.block_table("a")) == [0, 1, 2]
    assert cache.stats() == {"preemptions": 1}
    cache.preempt("a")
    cache.free("a")
    with pytest.raises(UnknownSequence):
        cache.free("a")


def test_what_it_cannot_do_is_refused_clearly() -> None:
    with pytest.raises(Unsupported, match="without a window"):
        ContiguousAdapter().manager(PoolSpec(8, 4, (GroupSpec(8),)), {})
    with pytest.raises(Unsupported, match="namespace 'a'"):
        manager().begin("a", [1], "a")
    with pytest.raises(InvalidRequest, match="policy 'best-fit'; choose reserve-max or buddy"):
        manager(policy="best-fit")
