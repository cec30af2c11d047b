"""What `ReferenceManager` promises, one sentence a test."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest

from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence
from kvbench.interface import (
    HOLE,
    CacheManager,
    Copy,
    Forks,
    GroupSpec,
    PoolSpec,
    Preempts,
    Resets,
    Swaps,
    Tier,
    Truncates,
)
from kvbench.reference.invariants import check_invariants
from kvbench.reference.manager import ReferenceManager


def pool(num_blocks: int = 8, block_size: int = 4, hash_function: Callable[[Hashable], int] = hash, **spec: Any) -> Any:
    return ReferenceManager(PoolSpec(num_blocks, block_size, **spec), hash_function)


def run(manager: ReferenceManager, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
    """Begin a sequence and finish its prefill."""
    cached = manager.begin(seq, tokens, namespace)
    manager.take_copies()
    manager.commit(seq, len(tokens))
    return cached


def run_and_free(manager: ReferenceManager, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
    cached = run(manager, seq, tokens, namespace)
    manager.free(seq)
    return cached


def tokens_of(letter: str, length: int) -> list[int]:
    """A prompt that shares no block with that of another letter."""
    return [ord(letter) * 1000 + position for position in range(length)]


def windows(*sizes: int | None) -> tuple[GroupSpec, ...]:
    return tuple(GroupSpec(size) for size in sizes)


# -- admission and prefix hits ---------------------------------------------------------------------------------------


def test_it_offers_every_optional_operation() -> None:
    for protocol in (CacheManager, Truncates, Forks, Preempts, Swaps, Resets):
        assert isinstance(pool(), protocol)


@pytest.mark.parametrize(("length", "cached"), [(0, 0), (1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8)])
def test_a_repeated_prompt_hits_its_full_blocks_but_leaves_a_token_to_compute(length: int, cached: int) -> None:
    manager = pool()
    run_and_free(manager, "first", tokens_of("a", length))
    assert manager.begin("again", tokens_of("a", length)) == cached


def test_generated_tokens_can_be_hit_by_the_next_turn() -> None:
    manager = pool()
    run(manager, "turn", [1, 2, 3])
    for token in (4, 5):
        manager.extend("turn", [token])
        manager.commit("turn", token)
    assert manager.begin("next", [1, 2, 3, 4, 5, 6]) == 4


def test_what_is_not_committed_cannot_be_hit() -> None:
    manager = pool()
    manager.begin("slow", tokens_of("a", 9))
    manager.commit("slow", 7)
    assert manager.begin("fast", tokens_of("a", 9)) == 4


def test_an_abort_before_the_write_leaves_nothing_to_hit() -> None:
    manager = pool()
    manager.begin("aborted", tokens_of("a", 9))
    manager.free("aborted")
    assert manager.free_blocks == 8
    assert manager.begin("next", tokens_of("a", 9)) == 0


def test_rejected_drafts_cannot_be_hit() -> None:
    manager = pool()
    run(manager, "drafting", [1, 2, 3])
    manager.extend("drafting", [4, 5], speculative=True)
    manager.commit("drafting", 3)
    manager.truncate("drafting", 3)
    manager.extend("drafting", [9])
    manager.commit("drafting", 4)
    assert manager.begin("drafts", [1, 2, 3, 4, 5]) == 0
    assert manager.begin("kept", [1, 2, 3, 9, 5]) == 4


def test_equal_blocks_behind_different_beginnings_are_different() -> None:
    manager = pool()
    run(manager, "a", [1, 1, 1, 1, 7, 7, 7, 7])
    assert manager.begin("b", [2, 2, 2, 2, 7, 7, 7, 7, 7]) == 0


@pytest.mark.parametrize("other", [None, "", "b", "ab", "None"])
def test_namespaces_do_not_see_each_other(other: str | None) -> None:
    manager = pool(16)
    run(manager, "a", tokens_of("a", 9), "a")
    assert manager.begin("stranger", tokens_of("a", 9), other) == 0
    assert manager.begin("friend", tokens_of("a", 9), "a") == 8


def test_a_hash_collision_serves_nobody_elses_block() -> None:
    manager = pool(32, 2, hash_function=lambda key: 0)
    for letter in "abc":
        for namespace in (None, "x"):
            assert run_and_free(manager, "seq", tokens_of(letter, 5), namespace) == 0
    assert run_and_free(manager, "seq", tokens_of("b", 5), "x") == 4


def test_each_token_is_hashed_once_a_sequence() -> None:
    hashed: list[Hashable] = []

    def counting(key: Hashable) -> int:
        hashed.append(key)
        return hash(key)

    manager = pool(64, 4, hash_function=counting, host_blocks=64)
    run(manager, "seq", tokens_of("a", 30))
    for position in range(30, 50):
        manager.extend("seq", [position])
        manager.commit("seq", position + 1)
    manager.preempt("seq")
    manager.resume("seq")
    manager.commit("seq", 50)
    manager.swap_out("seq")
    manager.swap_in("seq")
    manager.commit("seq", 50)
    assert len(hashed) == 1 + 50 // 4  # the namespace, then every full block


def test_nothing_is_hashed_or_hit_without_prefix_caching() -> None:
    def forbidden(key: Hashable) -> int:
        raise AssertionError(f"{key} was hashed")

    manager = pool(prefix_caching=False, hash_function=forbidden)
    run(manager, "a", tokens_of("a", 9))
    assert manager.begin("b", tokens_of("a", 9)) == 0
    assert manager.stats()["prefix_queries"] == 0


def test_equal_prompts_of_one_step_end_up_in_one_copy() -> None:
    manager = pool()
    for seq in ("a", "b"):
        assert manager.begin(seq, tokens_of("x", 9)) == 0
    assert manager.free_blocks == 2
    for seq in ("a", "b"):
        manager.commit(seq, 9)
    assert manager.block_table("a")[:2] == manager.block_table("b")[:2]
    assert manager.free_blocks == 4


def test_a_block_freed_in_this_step_can_be_hit_in_this_step() -> None:
    manager = pool(3)
    run(manager, "a", tokens_of("x", 9))
    table = manager.block_table("a")
    manager.free("a")
    assert manager.begin("b", tokens_of("x", 9)) == 8
    assert manager.block_table("b")[:2] == table[:2]


def test_counters_add_up() -> None:
    manager = pool(4)
    run_and_free(manager, "a", tokens_of("a", 9))
    run_and_free(manager, "b", tokens_of("a", 9))
    run(manager, "c", tokens_of("c", 16))
    manager.preempt("c")
    assert manager.stats() == {"prefix_queries": 34, "prefix_hits": 8, "evictions": 2, "preemptions": 1}


# -- exhaustion and eviction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(1, 13))
@pytest.mark.parametrize("added", range(6))
def test_extending_needs_exactly_the_blocks_that_the_new_length_fills(length: int, added: int) -> None:
    needed = -(-(length + added) // 4) - -(-length // 4)
    for spare in range(needed + 2):
        manager = pool(-(-length // 4) + spare)
        run(manager, "seq", tokens_of("a", length))
        if spare < needed:
            with pytest.raises(OutOfBlocks):
                manager.extend("seq", tokens_of("b", added))
        else:
            manager.extend("seq", tokens_of("b", added))
            assert manager.free_blocks == spare - needed


def test_a_prompt_fits_into_a_pool_that_is_full_of_its_own_prefix() -> None:
    manager = pool(3)
    run_and_free(manager, "a", tokens_of("x", 12))
    assert manager.free_blocks == 3
    assert manager.begin("b", tokens_of("x", 12)) == 8


def test_hits_that_nobody_uses_count_against_what_is_free() -> None:
    manager = pool(3)
    run_and_free(manager, "a", tokens_of("x", 8))
    run(manager, "other", tokens_of("o", 1))
    with pytest.raises(OutOfBlocks, match="needs 3 blocks and 2 of 3"):
        manager.begin("b", tokens_of("x", 9))
    check_invariants(manager)


def test_hits_in_use_cost_nothing() -> None:
    manager = pool(3)
    run(manager, "a", tokens_of("x", 8))
    assert manager.begin("b", tokens_of("x", 9)) == 8
    assert manager.free_blocks == 0


def test_a_refused_begin_can_be_repeated_and_leaves_the_name_free() -> None:
    manager = pool(2)
    run(manager, "a", tokens_of("a", 4))
    for _ in range(2):
        with pytest.raises(OutOfBlocks, match="'b' needs 2 blocks and 1 of 2 are obtainable"):
            manager.begin("b", tokens_of("b", 5))
    assert manager.begin("b", tokens_of("b", 4)) == 0


def test_a_sequences_last_block_is_evicted_before_its_first() -> None:
    manager = pool(3)
    run_and_free(manager, "a", tokens_of("a", 12))
    run_and_free(manager, "b", tokens_of("b", 3))
    assert manager.stats()["evictions"] == 1
    assert manager.begin("again", tokens_of("a", 12)) == 8


def test_the_least_recently_released_prefix_is_evicted_first_and_a_hit_refreshes_it() -> None:
    manager = pool(3)
    for letter in "abc":
        run_and_free(manager, letter, tokens_of(letter, 4))
    assert run_and_free(manager, "touch", [*tokens_of("a", 4), 5]) == 4  # its own tail takes b's block
    cached = {}
    for letter in "cab":
        cached[letter] = manager.begin(letter, [*tokens_of(letter, 4), 5])
        manager.free(letter)
    assert cached == {"a": 4, "b": 0, "c": 4}


def test_blocks_in_use_are_not_evicted() -> None:
    manager = pool(3)
    run(manager, "a", tokens_of("a", 9))
    with pytest.raises(OutOfBlocks):
        manager.begin("b", [1])
    assert manager.begin("empty", []) == 0


# -- copy-on-write ---------------------------------------------------------------------------------------------------


def test_the_first_of_two_forks_to_write_copies_the_shared_tail() -> None:
    manager = pool()
    run(manager, "parent", [1, 2, 3, 4, 5])
    manager.fork("parent", "child")
    shared = manager.block_table("parent")
    manager.extend("child", [6])
    assert manager.take_copies() == [Copy(shared[1], manager.block_table("child")[1], Tier.WITHIN)]
    manager.extend("parent", [7])
    assert manager.take_copies() == []
    assert manager.block_table("parent") == shared
    assert manager.block_table("child")[0] == shared[0] != manager.block_table("child")[1]


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    manager = pool()
    run(manager, "parent", [1, 2, 3, 4])
    manager.fork("parent", "child")
    manager.extend("parent", [5])
    manager.extend("child", [6])
    assert manager.take_copies() == []


def test_copies_of_copies_are_owed_in_an_order_that_works() -> None:
    manager = pool(block_size=4)
    run(manager, "a", [1, 2])
    manager.fork("a", "b")
    manager.extend("b", [3])
    manager.fork("b", "c")
    manager.extend("c", [4])
    first, second, third = (manager.block_table(seq)[0] for seq in "abc")
    assert manager.take_copies() == [Copy(first, second), Copy(second, third)]


def test_a_copy_reads_its_source_before_the_sources_next_owner_writes() -> None:
    manager = pool(3)
    run(manager, "a", [1, 2])
    manager.fork("a", "b")
    manager.extend("b", [3])
    source, target = manager.block_table("a")[0], manager.block_table("b")[0]
    manager.free("a")
    manager.begin("c", tokens_of("c", 8))
    assert source in manager.block_table("c")
    assert manager.take_copies() == [Copy(source, target)]  # before any write of the step


def test_a_copy_is_refused_as_a_whole_when_there_is_no_block_for_it() -> None:
    manager = pool(1)
    run(manager, "a", [1, 2])
    manager.fork("a", "b")
    with pytest.raises(OutOfBlocks):
        manager.extend("b", [3])
    assert manager.take_copies() == []
    manager.free("a")
    manager.extend("b", [3])


def test_a_cached_block_that_was_truncated_into_is_copied_not_overwritten() -> None:
    manager = pool()
    run(manager, "a", [1, 2, 3, 4])
    manager.truncate("a", 2)
    before = manager.block_table("a")[0]
    manager.extend("a", [9])
    assert manager.take_copies() == [Copy(before, manager.block_table("a")[0])]
    assert manager.begin("b", [1, 2, 3, 4, 5]) == 4
    assert manager.block_table("b")[0] == before


def test_a_cached_block_that_was_truncated_into_leaves_the_cache_when_there_is_no_room_for_a_copy() -> None:
    manager = pool(1)
    run(manager, "a", [1, 2, 3, 4])
    manager.truncate("a", 2)
    manager.extend("a", [9])
    assert manager.take_copies() == []
    manager.free("a")
    assert manager.begin("b", [1, 2, 3, 4]) == 0


# -- truncation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", range(6))
def test_dropping_any_number_of_drafts_returns_their_blocks(drafts: int) -> None:
    for kept in range(drafts + 1):
        manager = pool()
        run(manager, "seq", tokens_of("a", 6))
        manager.extend("seq", tokens_of("d", drafts), speculative=True)
        manager.commit("seq", 6 + kept)
        manager.truncate("seq", 6 + kept)
        assert manager.free_blocks == 8 - -(-(6 + kept) // 4)
        check_invariants(manager)


def test_a_shared_tail_survives_its_other_holders_truncation() -> None:
    manager = pool()
    run(manager, "a", tokens_of("a", 7))
    manager.fork("a", "b")
    manager.truncate("a", 2)
    manager.extend("a", [1])
    assert len(manager.take_copies()) == 1
    assert len(manager.block_table("b")) == 2
    check_invariants(manager)


# -- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("window", range(1, 10))
def test_a_window_keeps_exactly_the_blocks_that_the_next_query_sees(window: int, block_size: int) -> None:
    manager = pool(64, block_size, groups=windows(window))
    manager.begin("seq", [])
    for length in range(1, 4 * window + 2):
        manager.extend("seq", [length])
        manager.commit("seq", length)
        seen = range(max(0, length - window + 1), length)
        resident = {index for index, block in enumerate(manager.block_table("seq")) if block != HOLE}
        partial = {length // block_size} if length % block_size else set()
        assert resident == {position // block_size for position in seen} | partial


def test_a_window_lets_go_at_commit_and_not_while_a_step_may_still_read() -> None:
    manager = pool(groups=windows(4))
    manager.begin("seq", tokens_of("a", 16))
    manager.commit("seq", 6)
    assert HOLE not in manager.block_table("seq")  # the query at position 6 sees 3 to 6
    manager.extend("seq", tokens_of("b", 8))
    assert HOLE not in manager.block_table("seq")
    manager.commit("seq", 16)
    assert manager.block_table("seq")[:3] == (HOLE, HOLE, HOLE)
    assert manager.block_table("seq")[3] != HOLE


def test_groups_share_one_pool() -> None:
    manager = pool(8, groups=windows(None, 4))
    run(manager, "seq", tokens_of("a", 16))
    assert manager.free_blocks == 8 - 4 - 1
    assert HOLE not in manager.block_table("seq", 0)
    assert set(manager.block_table("seq", 0)).isdisjoint(manager.block_table("seq", 1))


def test_a_hit_takes_from_a_window_group_only_what_is_seen() -> None:
    manager = pool(groups=windows(None, 4))
    run(manager, "a", tokens_of("x", 13))
    assert manager.begin("b", tokens_of("x", 13)) == 12
    assert manager.block_table("b", 1)[:2] == (HOLE, HOLE)
    assert manager.block_table("b", 1)[2] == manager.block_table("a", 1)[2]


def test_a_hit_needs_every_group_to_have_what_it_needs() -> None:
    manager = pool(11, groups=windows(None, 4))
    run(manager, "a", tokens_of("x", 16))  # holds 4 + 1 blocks and leaves 3 of the window's idle
    run(manager, "b", tokens_of("y", 12))  # needs 6 and evicts those
    assert manager.stats()["evictions"] == 3
    manager.free("b")
    assert manager.begin("shorter", tokens_of("x", 9)) == 0  # the window's block before position 8 is gone
    manager.free("shorter")
    assert manager.begin("longer", [*tokens_of("x", 16), 1]) == 16


def test_truncating_to_what_a_window_has_let_go_of_is_refused() -> None:
    manager = pool(groups=windows(4))
    run(manager, "seq", tokens_of("a", 16))
    with pytest.raises(InvalidRequest, match="has let go of block 1"):
        manager.truncate("seq", 10)
    manager.truncate("seq", 15)
    manager.truncate("seq", 0)
    assert manager.free_blocks == 8


# -- preemption and swap ---------------------------------------------------------------------------------------------


def test_a_preempted_sequence_holds_nothing_and_resumes_from_what_is_cached() -> None:
    manager = pool()
    run(manager, "seq", tokens_of("a", 9), "ns")
    manager.extend("seq", [1])
    manager.preempt("seq")
    assert manager.free_blocks == 8
    assert manager.resume("seq") == 8
    assert len(manager.block_table("seq")) == 3
    assert manager.begin("stranger", tokens_of("a", 9)) == 0


def test_resuming_is_all_or_nothing() -> None:
    manager = pool(3)
    run(manager, "seq", tokens_of("a", 9))
    manager.preempt("seq")
    run(manager, "other", tokens_of("o", 1))
    with pytest.raises(OutOfBlocks):
        manager.resume("seq")
    manager.free("other")
    assert manager.resume("seq") == 8


def test_swapping_moves_every_block_out_and_back() -> None:
    manager = pool(3, host_blocks=3)
    run(manager, "seq", tokens_of("a", 9))
    device = manager.block_table("seq")
    manager.swap_out("seq")
    out = manager.take_copies()
    assert [copy.source for copy in out] == list(device)
    assert {copy.tier for copy in out} == {Tier.OUT}
    assert manager.free_blocks == 3
    manager.swap_in("seq")
    back = manager.take_copies()
    assert [copy.source for copy in back] == [copy.target for copy in out]
    assert [copy.target for copy in back] == list(manager.block_table("seq"))
    assert {copy.tier for copy in back} == {Tier.IN}


def test_forks_that_are_swapped_come_back_with_blocks_of_their_own() -> None:
    manager = pool(6, host_blocks=6)
    run(manager, "a", tokens_of("a", 9))
    manager.fork("a", "b")
    manager.swap_out("a")
    assert manager.free_blocks == 3
    manager.swap_out("b")
    targets = [copy.target for copy in manager.take_copies()]
    assert sorted(targets) == list(range(6))
    manager.swap_in("a")
    manager.swap_in("b")
    assert set(manager.block_table("a")).isdisjoint(manager.block_table("b"))


def test_what_comes_back_is_shared_again_after_the_next_commit() -> None:
    manager = pool(6, host_blocks=6)
    run(manager, "a", tokens_of("a", 9))
    manager.swap_out("a")
    run_and_free(manager, "other", tokens_of("o", 24))
    manager.swap_in("a")
    assert manager.begin("early", tokens_of("a", 9)) == 0
    manager.free("early")
    manager.take_copies()
    manager.commit("a", 9)
    assert manager.begin("later", tokens_of("a", 9)) == 8


def test_a_swap_is_refused_when_the_host_pool_is_too_full() -> None:
    manager = pool(host_blocks=2)
    run(manager, "seq", tokens_of("a", 9))
    with pytest.raises(OutOfBlocks, match="needs 3 host blocks and 2 of 2"):
        manager.swap_out("seq")
    assert manager.take_copies() == []
    assert len(manager.block_table("seq")) == 3


def test_holes_survive_a_swap() -> None:
    manager = pool(groups=windows(4), host_blocks=2)
    run(manager, "seq", tokens_of("a", 16))
    manager.swap_out("seq")
    manager.swap_in("seq")
    assert [block == HOLE for block in manager.block_table("seq")] == [True, True, True, False]


# -- reset -----------------------------------------------------------------------------------------------------------


def test_after_a_reset_neither_cached_nor_running_nor_swapped_prefixes_are_hit() -> None:
    manager = pool(16, host_blocks=4)
    run_and_free(manager, "done", tokens_of("d", 9))
    run(manager, "running", tokens_of("r", 9))
    run(manager, "swapped", tokens_of("s", 9))
    manager.swap_out("swapped")
    manager.reset()
    manager.swap_in("swapped")
    for letter, seq in (("d", None), ("r", "running"), ("s", "swapped")):
        if seq is not None:
            manager.extend(seq, tokens_of("x", 7))
            manager.commit(seq, 16)
        assert manager.begin("probe", tokens_of(letter, 9)) == 0
        manager.free("probe")


def test_what_is_computed_after_a_reset_is_hit_again() -> None:
    manager = pool()
    run(manager, "seq", tokens_of("a", 9))
    manager.preempt("seq")
    manager.reset()
    assert manager.resume("seq") == 0
    manager.commit("seq", 9)
    assert manager.begin("next", tokens_of("a", 9)) == 8


# -- misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.begin("seq", [1]),
        lambda manager: manager.fork("seq", "seq"),
        lambda manager: manager.fork("nobody", "child"),
        lambda manager: manager.free("nobody"),
        lambda manager: manager.extend("nobody", [1]),
        lambda manager: manager.commit("nobody", 0),
        lambda manager: manager.block_table("nobody"),
        lambda manager: manager.resume("nobody"),
    ],
)
def test_a_name_that_is_held_already_or_not_at_all_is_refused(call: Callable[[ReferenceManager], Any]) -> None:
    manager = pool()
    run(manager, "seq", [1, 2, 3])
    with pytest.raises(UnknownSequence):
        call(manager)
    assert manager.block_table("seq") == (0,)


def test_freeing_twice_is_refused() -> None:
    manager = pool()
    run_and_free(manager, "seq", [1, 2, 3])
    with pytest.raises(UnknownSequence):
        manager.free("seq")


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.begin("new", [1, -1]),
        lambda manager: manager.begin("new", ["one"]),
        lambda manager: manager.begin("new", [1.5]),
        lambda manager: manager.begin("new", 7),
        lambda manager: manager.extend("seq", [None]),
        lambda manager: manager.commit("seq", 4),
        lambda manager: manager.commit("seq", -1),
        lambda manager: manager.commit("seq", 1.5),
        lambda manager: manager.truncate("seq", 4),
        lambda manager: manager.truncate("seq", -1),
        lambda manager: manager.block_table("seq", 1),
        lambda manager: manager.block_table("seq", -1),
        lambda manager: manager.resume("seq"),
        lambda manager: manager.swap_in("seq"),
    ],
)
def test_arguments_that_no_cache_could_serve_are_refused(call: Callable[[Any], Any]) -> None:
    manager = pool()
    run(manager, "seq", [1, 2, 3])
    with pytest.raises(InvalidRequest):
        call(manager)
    check_invariants(manager)
    assert manager.free_blocks == 7


@pytest.mark.parametrize("leave", ["preempt", "swap_out"])
def test_a_sequence_that_is_not_running_can_only_come_back_or_be_freed(leave: str) -> None:
    manager = pool(host_blocks=8)
    run(manager, "seq", [1, 2, 3])
    getattr(manager, leave)("seq")
    for call in (
        lambda: manager.extend("seq", [1]),
        lambda: manager.commit("seq", 1),
        lambda: manager.truncate("seq", 1),
        lambda: manager.block_table("seq"),
        lambda: manager.fork("seq", "child"),
        lambda: manager.preempt("seq"),
        lambda: manager.swap_out("seq"),
    ):
        with pytest.raises(InvalidRequest, match=r"is (preempted|swapped out)"):
            call()
    manager.free("seq")
    assert manager.free_blocks == manager.usable_blocks


@pytest.mark.parametrize(
    "spec",
    [
        PoolSpec(0, 4),
        PoolSpec(4, 0),
        PoolSpec(4, 4, host_blocks=-1),
        PoolSpec(4, 4, groups=()),
        PoolSpec(4, 4, windows(0)),
    ],
)
def test_a_pool_that_cannot_exist_is_refused(spec: PoolSpec) -> None:
    with pytest.raises(InvalidRequest):
        ReferenceManager(spec)


def test_the_callers_list_may_change_afterwards() -> None:
    manager = pool()
    tokens = tokens_of("a", 9)
    manager.begin("a", tokens)
    tokens[0] = 1
    manager.commit("a", 9)
    assert manager.begin("b", tokens_of("a", 9)) == 8


def test_a_pool_that_was_used_and_reset_remembers_nothing() -> None:
    manager = pool()
    for letter in "abcdef":
        run_and_free(manager, letter, tokens_of(letter, 14), letter)
    manager.reset()
    assert manager.prefixes.buckets == {}
    assert manager.prefixes.places == {}
    assert len(manager.pool.unused) == 8
