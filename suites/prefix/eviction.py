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


@dataclass(frozen=True)
class Eviction:
    """Prompts of so many full blocks and a token are computed and freed in turn; then `evicted` blocks are evicted.

    blocks: full blocks of each prompt. order: which prompt is asked for, turn by turn; a later turn refreshes it.
    held: prompts that stay running from their last turn on; they cannot be evicted.
    """

    block_size: int
    blocks: tuple[int, ...]
    order: tuple[int, ...]
    evicted: int
    held: tuple[int, ...] = ()


def cases(subject: Subject) -> Iterator[Eviction]:
    """Few prompts, each order of refreshing them, every number of evicted blocks."""
    # In blocks of one token the last token, which is always left to compute, would be a cached block of its own.
    sizes = [size for size in block_sizes(subject, joined=False) if size > 1][:3]
    histories: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((3,), (0,)), ((2, 2), (0, 1)), ((2, 2), (0, 1, 0))]
    for order in permutations(range(3)):
        histories += [((1, 1, 1), order), ((1, 1, 1), (*order, order[0])), ((1, 1, 1), (*order, order[1]))]
    histories += [((2, 1, 3), (0, 1, 2, 0)), ((2, 1, 3), (0, 1, 2, 1, 0)), ((1, 2, 1, 2), (3, 1, 0, 2, 1))]
    for blocks, order in histories:
        for size in sizes:
            for held in ((), (order[0],)) if len(blocks) > 1 else ((),):
                for evicted in range(sum(blocks[prompt] for prompt in range(len(blocks)) if prompt not in held) + 1):
                    yield Eviction(size, blocks, order, evicted, held)


def judge_eviction(subject: Subject, case: Eviction) -> None:
    """Each prompt has lost what the model says, up to ties inside one prompt, the last blocks first."""
    expected = surviving(case)
    for prompt, blocks in enumerate(case.blocks):
        if prompt in case.held:
            continue
        world = _history(subject, case)
        hit = do(world, Begin("asked", _prompt(case, prompt)))
        survived, owed = hit // case.block_size, expected[prompt]
        told = f"after {case.evicted} evictions, prompts last used in the order {_last_used(case)}"
        if survived < owed:
            fail(world, f"{told}: prompt {prompt} has {survived} of {blocks} blocks left and should have {owed}")
        if survived > owed:
            fail(world, f"{told}: prompt {prompt} still has {survived} of {blocks} blocks, only {owed} should be left")


def _last_used(case: Eviction) -> list[int]:
    """Prompts, the one that was released longest ago first; held ones left out."""
    last = {prompt: turn for turn, prompt in enumerate(case.order)}
    return sorted((prompt for prompt in last if prompt not in case.held), key=lambda prompt: last[prompt])


def surviving(case: Eviction) -> list[int]:
    """How many leading blocks of each prompt are left: the model."""
    left, toll = list(case.blocks), case.evicted
    for prompt in _last_used(case):
        taken = min(toll, left[prompt])
        left[prompt] -= taken
        toll -= taken
    return left


def _prompt(case: Eviction, prompt: int) -> tuple[int, ...]:
    return (10 + prompt,) * (case.blocks[prompt] * case.block_size + 1)


def _history(subject: Subject, case: Eviction) -> World:
    """Play the turns, then begin a prompt that takes all unused blocks and evicts as many as the case says."""
    size = case.block_size
    total = sum(case.blocks) + len(case.blocks)
    world = open_world(subject, PoolSpec(2 * total + 4, size, max_length=4 * total * size + 16 * size))
    last = {prompt: turn for turn, prompt in enumerate(case.order)}
    for turn, prompt in enumerate(case.order):
        name = f"p{prompt}" if prompt in case.held and turn == last[prompt] else f"t{turn}"
        submit(world, name, _prompt(case, prompt))
        if not name.startswith("p"):
            release(world, name)
    cached = sum(blocks for prompt, blocks in enumerate(case.blocks) if prompt not in case.held)
    taken = world.view.free - cached + case.evicted
    # The filler's own blocks must not be asked for: it stays running.
    submit(world, "filler", (9,) * (taken * size))
    if world.view.free != cached - case.evicted:
        raise NotApplicable("the pool cannot be filled to the block")
    return world


def search_eviction(subject: Subject, effort: Effort) -> Outcome:
    """All cases, short histories first."""
    return try_all(subject, effort, cases(subject), judge_eviction)


__all__ = ["Eviction", "cases", "judge_eviction", "search_eviction", "surviving"]
