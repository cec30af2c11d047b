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
    paths: content of each prompt's blocks, where prompts begin alike. overlapping: a prompt's turns are in pairs; it
    begins at the first and is released at the second, and others run in between.
    """

    block_size: int
    blocks: tuple[int, ...]
    order: tuple[int, ...]
    evicted: int
    held: tuple[int, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()
    overlapping: bool = False

    def path(self, prompt: int) -> tuple[int, ...]:
        """The content of each full block of `prompt`."""
        return self.paths[prompt] if self.paths else (10 + prompt,) * self.blocks[prompt]

    def moves(self) -> Iterator[tuple[int, bool]]:
        """Which prompt begins (True) or is released (False), in order."""
        running: set[int] = set()
        last = {prompt: turn for turn, prompt in enumerate(self.order)}
        for turn, prompt in enumerate(self.order):
            begins = not self.overlapping or prompt not in running
            if begins:
                running.add(prompt)
                yield prompt, True
            if not (begins and self.overlapping) and not (prompt in self.held and turn == last[prompt]):
                running.discard(prompt)
                yield prompt, False


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
    yield from _entangled_cases(sizes)


def _entangled_cases(sizes: list[int]) -> Iterator[Eviction]:
    """Prompts that run at the same time, and prompts that begin alike, every number of evicted blocks."""
    apart, alike = ((1,), (2, 2), (3,)), ((1, 1), (2,), (1, 3))
    histories = [(paths, order, False) for paths in (alike,) for order in permutations(range(3))]
    for paths in (apart, alike):
        for first in permutations(range(3)):
            histories += [(paths, (*first, *then), True) for then in (first, first[::-1], (*first[1:], first[0]))]
    for paths, order, overlapping in histories:
        total = len({path[: depth + 1] for path in paths for depth in range(len(path))})
        for evicted in range(1, total):
            for size in sizes[:1]:
                blocks = tuple(len(path) for path in paths)
                yield Eviction(size, blocks, order, evicted, paths=paths, overlapping=overlapping)


def judge_eviction(subject: Subject, case: Eviction) -> None:
    """Each prompt has lost what the model says, up to ties inside one prompt, the last blocks first."""
    expected = surviving(case)
    for prompt, blocks in enumerate(case.blocks):
        if prompt in case.held:
            continue
        world = _history(subject, case)
        release(world, "filler")
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
    """How many leading blocks of each prompt are left: the model.

    A block is last used when the last prompt that holds it is released; of one prompt the last block goes first.
    """
    idle = sorted(_idle(case).items(), key=lambda item: item[1])
    gone = {block for block, _ in idle[: case.evicted]}
    return [_until(gone, case.path(prompt)) for prompt in range(len(case.blocks))]


def _idle(case: Eviction) -> dict[tuple[int, ...], tuple[int, int]]:
    """Cached blocks that nobody holds, each the content up to its end, with when it was released."""
    holders: dict[tuple[int, ...], int] = {}
    released: dict[tuple[int, ...], tuple[int, int]] = {}
    for time, (prompt, begins) in enumerate(case.moves()):
        path = case.path(prompt)
        for depth in range(1, len(path) + 1):
            block = path[:depth]
            holders[block] = holders.get(block, 0) + (1 if begins else -1)
            released[block] = (time, -depth)
    return {block: when for block, when in released.items() if holders[block] == 0}


def _until(gone: set[tuple[int, ...]], path: tuple[int, ...]) -> int:
    return next((depth for depth in range(len(path)) if path[: depth + 1] in gone), len(path))


def _prompt(case: Eviction, prompt: int) -> tuple[int, ...]:
    blocks = (token for token in case.path(prompt) for _ in range(case.block_size))
    return (*blocks, 10 + prompt)


def _history(subject: Subject, case: Eviction) -> World:
    """Play the turns, then begin a prompt that takes all unused blocks and evicts as many as the case says."""
    size = case.block_size
    total = sum(case.blocks) + len(case.blocks)
    world = open_world(subject, PoolSpec(2 * total + 4, size, max_length=4 * total * size + 16 * size))
    names: dict[int, str] = {}
    for number, (prompt, begins) in enumerate(case.moves()):
        if begins:
            names[prompt] = f"t{number}"
            submit(world, names[prompt], _prompt(case, prompt))
        else:
            release(world, names[prompt])
    cached = len(_idle(case))
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
