"""How many operations a second a manager does: one appended token, and one lookup of a cached prompt."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from kvbench.interface import CacheManager, PoolSpec
from kvbench.subject import Subject

SEQUENCES = 32
PROMPT_BLOCKS = 32
OPERATIONS = 512
"""Operations that one timed call does, so that the timer's own cost disappears."""


@dataclass(frozen=True)
class Drill:
    """A timed call that does `operations` operations on a manager."""

    metric: str
    operations: int
    call: Callable[[int], object]


def drills(subject: Subject) -> list[Drill]:
    """The drills that a manager's declared capabilities allow."""
    block_size = subject.manager.block_sizes.among([16, 32])[0]
    found = [_append(subject, block_size)]
    if subject.manager.prefix_caching:
        found.append(_lookup(subject, block_size))
    return found


def _manager(subject: Subject, block_size: int) -> tuple[CacheManager, int]:
    length = PROMPT_BLOCKS * block_size + OPERATIONS
    blocks = (SEQUENCES + 2) * -(-length // block_size)
    spec = PoolSpec(blocks, block_size, max_sequences=SEQUENCES + 2, max_length=length)
    made: CacheManager = subject.new_manager(spec).unguarded
    return made, length


def _append(subject: Subject, block_size: int) -> Drill:
    """Decode: `SEQUENCES` running sequences, one token each a step, committed, then all freed and begun again."""
    manager, _ = _manager(subject, block_size)
    steps = OPERATIONS // SEQUENCES
    names = [f"s{i}" for i in range(SEQUENCES)]
    prompt = PROMPT_BLOCKS * block_size
    fresh = itertools.count(prompt * SEQUENCES)

    def begin() -> None:
        for index, name in enumerate(names):
            manager.begin(name, range(index * prompt, (index + 1) * prompt))
        manager.take_copies()
        for name in names:
            manager.commit(name, prompt)

    def call(_: int) -> None:
        for step in range(steps):
            for name in names:
                manager.extend(name, (next(fresh),))
            manager.take_copies()
            for name in names:
                manager.commit(name, lengths[name] + step + 1)
        for name in names:
            lengths[name] += steps
            if lengths[name] + steps > prompt + OPERATIONS:
                manager.free(name)
                manager.begin(name, range(prompt))
                manager.take_copies()
                manager.commit(name, prompt)
                lengths[name] = prompt

    begin()
    lengths = dict.fromkeys(names, prompt)
    return Drill("append_rate", steps * SEQUENCES, call)


def _lookup(subject: Subject, block_size: int) -> Drill:
    """Admit and free a prompt whose blocks are all cached."""
    manager, _ = _manager(subject, block_size)
    prompt = list(range(PROMPT_BLOCKS * block_size + 1))
    manager.begin("owner", prompt)
    manager.take_copies()
    manager.commit("owner", len(prompt))

    def call(_: int) -> None:
        for _ in range(lookups):
            manager.begin("again", prompt)
            manager.free("again")

    lookups = 32
    return Drill("lookup_rate", lookups, call)
