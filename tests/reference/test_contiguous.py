"""What the contiguous baselines promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence
from kvbench.reference.contiguous import (
    Account,
    AddressSpace,
    Buddies,
    ContiguousPool,
    FirstFit,
    Span,
    buddy,
    oracle,
    reserve_max,
)


def test_reserve_max_reserves_the_longest_length_whatever_is_needed() -> None:
    pool = reserve_max(100, 32)
    pool.admit("a", 5, 9)
    assert pool.span("a") == Span(0, 32)
    assert pool.account() == Account(used=5, reserved=4, internal=23, free=68, largest_hole=68)


def test_the_oracle_reserves_exactly_what_a_sequence_will_reach() -> None:
    pool = oracle(100)
    pool.admit("a", 5, 9)
    pool.grow("a", 5, 3)
    assert pool.account() == Account(used=8, reserved=1, internal=0, free=91, largest_hole=91)


def test_a_buddy_sequence_moves_to_twice_the_size_when_it_outgrows_its_run() -> None:
    pool = buddy(64)
    pool.admit("a", 5, 20)
    assert pool.span("a") == Span(0, 8)
    pool.grow("a", 5, 3)
    assert pool.moved == 0
    pool.grow("a", 8)
    assert pool.span("a") == Span(16, 16)
    assert pool.moved == 8
    assert pool.account() == Account(used=9, reserved=7, internal=0, free=48, largest_hole=32)


def test_what_a_buddy_sequence_will_never_fill_is_internal_fragmentation() -> None:
    pool = buddy(64)
    pool.admit("a", 9, 11)
    assert pool.account() == Account(used=9, reserved=2, internal=5, free=48, largest_hole=32)


def test_free_slots_without_a_hole_for_the_request_are_external_fragmentation() -> None:
    pool = oracle(30)
    for name in "abc":
        pool.admit(name, 10, 10)
    pool.release("a")
    pool.release("c")
    assert pool.free_slots() == 20
    assert pool.account().external_fragmentation == 0.5
    with pytest.raises(OutOfBlocks, match="needs a run of 11 slots; 20 of 30 are free, 10 at most in one run"):
        pool.admit("d", 1, 11)
    pool.release("b")
    pool.admit("d", 1, 30)


def test_a_full_pool_has_no_external_fragmentation() -> None:
    pool = oracle(10)
    pool.admit("a", 10, 10)
    assert pool.account().external_fragmentation == 0


def test_first_fit_takes_the_lowest_hole_that_is_large_enough() -> None:
    space = FirstFit(20)
    for size in (3, 2, 5, 2, 8):
        space.take(size)
    space.give(Span(0, 3))
    space.give(Span(5, 5))
    space.give(Span(12, 8))
    assert [space.take(size) for size in (4, 3, 8, 2)] == [5, 0, 12, None]


@pytest.mark.parametrize("slots", [1, 2, 7, 8, 12, 100])
def test_buddies_of_any_number_of_slots_hand_out_every_one_of_them(slots: int) -> None:
    space = Buddies(slots)
    assert sorted(space.take(1) for _ in range(slots)) == list(range(slots))  # type: ignore[type-var]
    assert space.take(1) is None
    for start in range(slots):
        space.give(Span(start, 1))
    assert space.largest == 1 << (slots.bit_length() - 1)


def test_a_move_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    pool = buddy(8)
    pool.admit("a", 4, 8)
    before = pool.account()
    with pytest.raises(OutOfBlocks):
        pool.grow("a", 4)
    assert pool.account() == before
    assert pool.span("a") == Span(0, 4)


def test_a_sequence_longer_than_what_is_reserved_is_refused() -> None:
    pool = reserve_max(100, 8)
    pool.admit("a", 8, 20)
    with pytest.raises(OutOfBlocks, match="9 tokens and may reserve 8 slots at most"):
        pool.grow("a", 8)


def test_an_empty_sequence_needs_nothing_until_it_grows() -> None:
    pool = buddy(8)
    pool.admit("a", 0, 8)
    assert pool.free_slots() == 8
    pool.grow("a", 0, 3)
    pool.release("a")
    assert pool.account() == Account(0, 0, 0, 8, 8)


def test_unknown_names_and_impossible_lengths_are_refused() -> None:
    pool = oracle(10)
    pool.admit("a", 2, 4)
    with pytest.raises(UnknownSequence):
        pool.admit("a", 1, 1)
    with pytest.raises(UnknownSequence):
        pool.release("b")
    with pytest.raises(InvalidRequest):
        pool.admit("b", 3, 2)
    with pytest.raises(InvalidRequest):
        pool.grow("a", 3, 1)


@pytest.mark.parametrize("new_space", [FirstFit, Buddies])
@given(slots=st.integers(1, 70), sizes=st.lists(st.integers(0, 4)), data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_runs_never_overlap_and_everything_comes_back(
    new_space: Callable[[int], AddressSpace], slots: int, sizes: list[int], data: st.DataObject
) -> None:
    space = new_space(slots)
    largest = space.largest
    taken: list[Span] = []
    for order in sizes:
        size = 1 << order
        start = space.take(size)
        if start is None:
            assert space.largest < size
            if taken:
                space.give(taken.pop(data.draw(st.integers(0, len(taken) - 1))))
        else:
            taken.append(Span(start, size))
        used = [slot for span in taken for slot in range(span.start, span.start + span.size)]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(slots))
        assert space.free == slots - len(used)
    for span in taken:
        space.give(span)
    assert (space.free, space.largest) == (slots, largest)


@given(
    policy=st.sampled_from(["reserve-max", "buddy", "oracle"]),
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8),
    growth=st.lists(st.integers(0, 7)),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_accounts_add_up_to_all_slots(policy: str, lengths: list[tuple[int, int]], growth: list[int]) -> None:
    slots = 64
    pool: ContiguousPool = {"reserve-max": lambda: reserve_max(slots, 24), "buddy": lambda: buddy(slots)}.get(
        policy, lambda: oracle(slots)
    )()
    tokens: dict[str, int] = {}
    for number, (prompt, more) in enumerate(lengths):
        try:
            pool.admit(str(number), prompt, prompt + more)
            tokens[str(number)] = prompt
        except OutOfBlocks:
            continue
    for number in growth:
        name = str(number)
        if name in tokens and tokens[name] < sum(lengths[number]):
            try:
                pool.grow(name, tokens[name])
                tokens[name] += 1
            except OutOfBlocks:
                pool.release(name)
                del tokens[name]
        account = pool.account()
        assert account.used == sum(tokens.values())
        assert min(account.reserved, account.internal) >= 0
        assert account.used + account.reserved + account.internal + account.free == slots
