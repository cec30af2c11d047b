"""What a prefix cache owes, and the steps that all prefix checks are made of."""

from __future__ import annotations

from typing import NoReturn

from kvbench.checks import NotApplicable, Violation
from kvbench.interface import PoolSpec
from kvbench.subject import Subject
from kvbench.suites.lifecycle.operations import Begin, EndStep, Free, Operation
from kvbench.suites.lifecycle.run import World, new_world


def roomy_pool(block_size: int, prompts: int, longest: int) -> PoolSpec:
    """A pool in which `prompts` prompts of `longest` tokens fit three times over, so that nothing is evicted."""
    blocks = 3 * prompts * (longest // block_size + 2) + 4
    return PoolSpec(blocks, block_size, max_length=max(blocks * block_size, longest), max_sequences=64)


def least_hit(length: int, block_size: int) -> int:
    """Tokens of a fully committed prompt that must be hit: its full blocks, the last token left to compute.

    Where the prompt ends with a block, one more block may be held back.
    """
    full = max(0, length - 1) // block_size * block_size
    return max(0, full - block_size) if length % block_size == 0 else full


def open_world(subject: Subject, pool: PoolSpec) -> World:
    """A fresh world. Raises `NotApplicable` for a pool that is not offered."""
    return new_world(subject, pool)


def do(world: World, operation: Operation) -> int:
    """Perform an operation that must be granted; tokens that it hit. Raises `NotApplicable` where it is not."""
    answer = world.perform(operation)
    if answer is None or answer.refused is not None:
        raise NotApplicable(f"{operation.told()} was not granted")
    return answer.cached or 0


def submit(world: World, seq: str, tokens: tuple[int, ...], namespace: str | None = None, chunk: int = 0) -> int:
    """Begin a prompt and compute all of it, in chunks if `chunk` is given; tokens that it hit."""
    cached = do(world, Begin(seq, tokens, namespace))
    while chunk and world.model.live[seq].pending > chunk:
        world.perform(EndStep(chunk))
    world.perform(EndStep())
    return cached


def release(world: World, seq: str) -> None:
    """Let go of a sequence."""
    do(world, Free(seq))


def fail(world: World, message: str) -> NoReturn:
    """Raise a violation with the story so far."""
    raise Violation(message, story=world.story(message), timeline=world.timeline(message, ()))


def must_hit(world: World, seq: str, cached: int, least: int) -> None:
    """`seq` was told that `cached` tokens are cached; `least` are owed."""
    if cached < least:
        fail(world, f"{seq} hit {cached} tokens, and {least} are committed and were never evicted")


__all__ = ["do", "fail", "least_hit", "must_hit", "open_world", "release", "roomy_pool", "submit"]
