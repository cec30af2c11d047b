"""Scripts for the lifecycle's judge: prompts that part at every place, and rows that never came to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvbench.budget import Effort
from kvbench.checks import Outcome
from kvbench.interface import PoolSpec
from kvbench.subject import Subject
from kvbench.suites.lifecycle.grid import try_all
from kvbench.suites.lifecycle.operations import (
    Begin,
    Draft,
    EndStep,
    Extend,
    Fork,
    Free,
    Operation,
    Preempt,
    Resume,
    Script,
    Truncate,
)
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.lifecycle.run import judge_script
from kvbench.suites.prefix.hits import roomy_pool

Operations = tuple[Operation, ...]


def _prompts(size: int) -> list[tuple[int, ...]]:
    """Prompts of three blocks and a token: all ones, and with another token at every kind of place."""
    length = 3 * size + 1
    places = sorted({0, size // 2, size - 1, size, size + size // 2, 2 * size - 1, 2 * size, length - 1})
    plain = (1,) * length
    return [plain, *[(*plain[:place], 2, *plain[place + 1 :]) for place in places], plain[: 2 * size], (2,) * length]


def exact_cases(subject: Subject) -> Iterator[Script]:
    """Pairs of prompts, the first of them running, freed, or gone on with; then a roomy and a tight pool with all."""
    for size in block_sizes(subject, joined=False):
        prompts = _prompts(size)
        pool = roomy_pool(size, 4, 4 * size)
        for first in prompts:
            for second in prompts:
                if first == second:
                    continue
                for middle in ((), (Free("a"),), (Extend("a", (2,) * size), EndStep(), Free("a"))):
                    operations: Operations = (Begin("a", first), EndStep(), *middle, Begin("b", second), EndStep())
                    yield Script(pool, operations)
        for blocks in (6, 9, 14):
            yield Script(replace(pool, num_blocks=blocks, max_length=2 * blocks * size), _all_turns(prompts))


def _all_turns(prompts: list[tuple[int, ...]]) -> Operations:
    """Every prompt after the other, twice, with a few still running: evicted prefixes are asked for again."""
    operations: list[Operation] = []
    for number, prompt in enumerate([*prompts, *prompts[::-1]]):
        operations += [Begin(f"a{number}", prompt), EndStep()]
        if number:
            operations.append(Free(f"a{number - 1}"))
    return tuple(operations)


def search_exact(subject: Subject, effort: Effort) -> Outcome:
    """All cases, small blocks first."""
    return try_all(subject, effort, exact_cases(subject), judge_script)


def _never_computed(prompt: tuple[int, ...], size: int) -> Iterator[Operations]:
    """What was asked for and stopped, by an abort or a preemption, before its rows came to be."""
    ask_again: Operations = (Begin("b", prompt), EndStep())
    yield (Begin("a", prompt), Free("a"), *ask_again)
    yield (Begin("a", prompt), Free("a"), EndStep(), *ask_again)
    yield (Begin("a", prompt), Preempt("a"), *ask_again, Resume("a"), EndStep())
    for chunk in sorted({1, size, size + 1}):
        started: Operations = (Begin("a", prompt), EndStep(chunk))
        yield (*started, Free("a"), *ask_again)
        yield (*started, *ask_again, EndStep())
        yield (*started, Preempt("a"), *ask_again, Resume("a"), EndStep())
    grown: Operations = (Begin("a", prompt[:size]), EndStep(), Extend("a", prompt[size:]))
    yield (*grown, Free("a"), *ask_again)
    yield (*grown, Preempt("a"), *ask_again)


def _given_up(prompt: tuple[int, ...], size: int) -> Iterator[Operations]:
    """Drafts that were rejected, tokens that were dropped: what stands in their place may not answer for them."""
    other = (3,) * (size + 1)
    for accepted in sorted({0, 1, size}):
        for before in sorted({1, size, size + 1}):
            drafted: Operations = (
                Begin("a", prompt[:before]),
                EndStep(),
                Draft("a", prompt[before : before + 2 * size], min(accepted, len(prompt[before : before + 2 * size]))),
                EndStep(),
            )
            yield (*drafted, Begin("b", prompt), EndStep())
            yield (*drafted, Extend("a", other), EndStep(), Begin("b", prompt), EndStep())
            yield (*drafted, Fork("a", "c"), Extend("c", other), EndStep(), Free("a"), Begin("b", prompt), EndStep())
    computed: Operations = (Begin("a", prompt), EndStep())
    for length in sorted({1, size, len(prompt) - 1}):
        dropped: Operations = (*computed, Truncate("a", length), Extend("a", other), EndStep())
        yield (*dropped, Begin("b", prompt), EndStep())
        yield (*dropped, Free("a"), Begin("b", prompt[:length] + other + (1,)), EndStep())


def unpublished_cases(subject: Subject) -> Iterator[Script]:
    """Each way in which rows do not come to be, in a roomy and in a tight pool."""
    for size in block_sizes(subject, joined=False)[:5]:
        prompt = (1,) * (2 * size + 1)
        pools: list[PoolSpec] = [roomy_pool(size, 4, 4 * size)]
        pools.append(replace(pools[0], num_blocks=8, max_length=16 * size))
        for pool in pools:
            for operations in (*_never_computed(prompt, size), *_given_up(prompt, size)):
                yield Script(pool, operations)


def search_unpublished(subject: Subject, effort: Effort) -> Outcome:
    """All cases, small blocks first."""
    return try_all(subject, effort, unpublished_cases(subject), judge_script)


__all__ = ["exact_cases", "search_exact", "search_unpublished", "unpublished_cases"]
