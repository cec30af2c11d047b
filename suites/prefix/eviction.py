"""The order in which cached prefixes are given up, where `eviction="lru"` declares one.

What survived is found by asking for one prompt after each replay of the history, as asking changes the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from kvbench.budget import Effort
from kvbench.checks import NotApplicable, Outcome
from kvbench.interface import PoolSpec
from kvbench.subject import Subject
from kvbench.suites.lifecycle.grid import try_all
from kvbench.suites.lifecycle.operations import Begin
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.lifecycle.run import World
from kvbench.suites.prefix.hits import do, fail, open_world, release, submit

Prompt = tuple[int, ...]
"""What its full blocks hold, a number a block: prompts that begin alike share blocks. One more token is computed."""


@dataclass(frozen=True)
class Eviction:
    """Prompts are computed and freed in turn; then `evicted` blocks are evicted.

    turns: a number n computes prompt n, ~n frees the sequence of prompt n that was begun first; who is not freed stays.
    """

    block_size: int
    prompts: tuple[Prompt, ...]
    turns: tuple[int, ...]
    evicted: int


def one_after_the_other(order: tuple[int, ...], held: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Turns in which each prompt is freed before the next is begun; the last turn of those in `held` stays."""
    last = {prompt: turn for turn, prompt in enumerate(order)}
    turns: list[int] = []
    for turn, prompt in enumerate(order):
        turns += [prompt] if prompt in held and turn == last[prompt] else [prompt, ~prompt]
    return tuple(turns)


def histories() -> Iterator[tuple[tuple[Prompt, ...], tuple[int, ...]]]:
    """Prompts of their own in every order of refreshing them, prompts that begin alike, and runs that overlap."""
    yield ((1, 1, 1),), (0, ~0)
    pair, three = ((1, 1), (2, 2)), ((1,), (2,), (3,))
    for again in ((), (0,)):
        yield pair, one_after_the_other((0, 1, *again))
        yield pair, one_after_the_other((0, 1, *again), held=(0,))
    for order in permutations(range(3)):
        for refreshed in ((), order[:1], order[1:2]):
            yield three, one_after_the_other((*order, *refreshed))
        yield three, one_after_the_other(order, held=(order[0],))
    # The one that is begun first is freed last; then it is hit while it still runs.
    yield pair, (0, 1, ~1, ~0)
    yield pair, (1, 0, 0, ~1, ~0, ~0)
    yield three, (2, 0, 1, ~0, ~2, ~1)
    # A beginning is used again, its continuation is not.
    yield ((1, 1), (2,), (1, 3)), one_after_the_other((0, 1, 2))
    yield ((1, 1, 1), (2, 2), (1,)), one_after_the_other((0, 1, 2))
    yield ((1, 1), (1, 2), (3,)), (0, 1, ~1, 2, ~0, ~2)
    uneven = ((1, 1), (2,), (3, 3, 3))
    yield uneven, one_after_the_other((0, 1, 2, 0))
    yield uneven, one_after_the_other((0, 1, 2, 1, 0))


def cases(subject: Subject) -> Iterator[Eviction]:
    """Each history, every number of evicted blocks."""
    # In blocks of one token the last token, which is always left to compute, would be a cached block of its own.
    sizes = [size for size in block_sizes(subject, joined=False) if size > 1][:2]
    for prompts, turns in histories():
        for size in sizes:
            for evicted in range(len(_idle(prompts, turns)) + 1):
                yield Eviction(size, prompts, turns, evicted)


def judge_eviction(subject: Subject, case: Eviction) -> None:
    """Each prompt has lost what the model says: what was used longest ago, last blocks first."""
    expected = surviving(case)
    for number, prompt in enumerate(case.prompts):
        world = _history(subject, case)
        release(world, "filler")
        hit = do(world, Begin("asked", _tokens(case, prompt)))
        survived, owed = hit // case.block_size, expected[number]
        told = f"after {case.evicted} evictions, in prompts {_told(case)}"
        if survived < owed:
            fail(world, f"{told}: prompt {number} has {survived} of {len(prompt)} blocks left and should have {owed}")
        if survived > owed:
            fail(
                world,
                f"{told}: prompt {number} still has {survived} of {len(prompt)} blocks, only {owed} should be left",
            )


def _told(case: Eviction) -> str:
    turns = (f"{'begin' if turn >= 0 else 'free'} {max(turn, ~turn)}" for turn in case.turns)
    return f"of {', '.join(str(len(prompt)) for prompt in case.prompts)} blocks used in the order {', '.join(turns)}"


def _idle(prompts: tuple[Prompt, ...], turns: tuple[int, ...]) -> list[Prompt]:
    """The model: the blocks that nobody holds, named by what they and those before them hold, next victim first."""
    holders: dict[Prompt, int] = {}
    released: dict[Prompt, int] = {}
    for turn in turns:
        prompt = prompts[max(turn, ~turn)]
        for length in range(len(prompt), 0, -1):
            block = prompt[:length]
            holders[block] = holders.get(block, 0) + (1 if turn >= 0 else -1)
            if turn < 0 and holders[block] == 0:
                released.pop(block, None)
                released[block] = turn
            elif turn >= 0:
                released.pop(block, None)
    return list(released)


def surviving(case: Eviction) -> list[int]:
    """How many leading blocks of each prompt are left."""
    gone = set(_idle(case.prompts, case.turns)[: case.evicted])
    left = []
    for prompt in case.prompts:
        lengths = range(1, len(prompt) + 1)
        left.append(next((length - 1 for length in lengths if prompt[:length] in gone), len(prompt)))
    return left


def _tokens(case: Eviction, prompt: Prompt) -> tuple[int, ...]:
    return (*(10 + content for content in prompt for _ in range(case.block_size)), 9)


def _history(subject: Subject, case: Eviction) -> World:
    """Play the turns, then begin a prompt that takes all unused blocks and evicts as many as the case says."""
    size = case.block_size
    total = sum(len(prompt) + 1 for prompt in case.prompts) * len(case.turns)
    world = open_world(subject, PoolSpec(total + 4, size, max_length=4 * total * size + 16 * size))
    running: dict[int, list[str]] = {}
    for number, turn in enumerate(case.turns):
        if turn >= 0:
            running.setdefault(turn, []).append(f"t{number}")
            submit(world, f"t{number}", _tokens(case, case.prompts[turn]))
        else:
            release(world, running[~turn].pop(0))
    cached = len(_idle(case.prompts, case.turns))
    taken = world.view.free - cached + case.evicted
    submit(world, "filler", (8,) * (taken * size))
    if world.view.free != cached - case.evicted:
        raise NotApplicable("the pool cannot be filled to the block")
    return world


def search_eviction(subject: Subject, effort: Effort) -> Outcome:
    """All cases, short histories first."""
    return try_all(subject, effort, cases(subject), judge_eviction)


__all__ = ["Eviction", "cases", "judge_eviction", "one_after_the_other", "search_eviction", "surviving"]
