"""How many blocks an operation takes, to the block: all lengths around multiples of the block size, tight pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvbench.budget import Effort
from kvbench.checks import NotApplicable, Outcome, Violation
from kvbench.interface import GroupSpec, PoolSpec
from kvbench.subject import Subject
from kvbench.suites.lifecycle.grid import try_all
from kvbench.suites.lifecycle.operations import Begin, EndStep, Extend, Operation
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.lifecycle.run import World, new_world


@dataclass(frozen=True)
class ExactFit:
    """A sequence of `length` tokens grows by `more`, or is begun if `more` is 0, with `spare` blocks too many.

    `spare` -1 is one block too few. groups: full-attention groups of layers.
    """

    block_size: int
    length: int
    more: int
    spare: int
    groups: int = 1

    @property
    def need(self) -> int:
        """Blocks that the operation takes: ceil((length + more) / block_size) - ceil(length / block_size)."""
        if self.more == 0:
            return self.groups * _blocks(self.length, self.block_size)
        grown = _blocks(self.length + self.more, self.block_size)
        return self.groups * (grown - _blocks(self.length, self.block_size))


def _blocks(length: int, block_size: int) -> int:
    return -(-length // block_size)


def cases(subject: Subject) -> Iterator[ExactFit]:
    """Lengths around multiples of the block size, and what is free: what is needed, one block less, one more."""
    for size in block_sizes(subject, joined=False):
        around = sorted({n for k in (0, 1, 2) for n in (k * size - 1, k * size, k * size + 1) if n > 0})
        for groups in (1, 2) if subject.manager.max_groups > 1 else (1,):
            for length in around:
                for more in (0, *around):
                    for spare in (0, groups, -1):
                        case = ExactFit(size, length, more, spare, groups)
                        if case.need + spare >= 0:
                            yield case


def judge_exact_fit(subject: Subject, case: ExactFit) -> None:
    """The operation takes exactly what it needs, is granted where that is free, and refused where it is not."""
    world = _with_room_for(subject, case)
    if case.more:
        _grow_by_nothing(world)
    operation: Operation = Extend("a", (2,) * case.more) if case.more else Begin("a", (1,) * case.length)
    free = world.view.free
    answer = world.perform(operation)
    if answer is None:
        raise NotApplicable(f"{operation.told()} does not apply")
    if answer.refused is not None:
        # A refusal that was not due has been judged already.
        world.finish()
        return
    taken = free - world.view.free
    if taken != case.need:
        _raise(world, f"{operation.told()} took {taken} blocks of {case.block_size} tokens, {case.need} are needed")
    world.finish()


def _grow_by_nothing(world: World) -> None:
    """No token more takes no block more."""
    free = world.view.free
    world.perform(Extend("a", ()))
    if world.view.free != free:
        _raise(world, f"extending a by no token took {free - world.view.free} blocks")


def _with_room_for(subject: Subject, case: ExactFit) -> World:
    """A world in which exactly `need + spare` blocks are free."""
    length, size = case.length + case.more, case.block_size
    held = case.groups * _blocks(case.length, size) if case.more else 0
    # Half as many again, for blocks that the manager keeps for itself.
    blocks = (held + case.need + 2 * case.groups) * 3 // 2 + 4
    pool = PoolSpec(
        num_blocks=blocks,
        block_size=size,
        groups=(GroupSpec(),) * case.groups,
        prefix_caching=False,
        max_length=max(blocks * size, length),
    )
    world = new_world(subject, pool)
    if case.more:
        world.perform(Begin("a", (1,) * case.length))
        world.perform(EndStep())
    surplus = world.view.free - case.need - case.spare
    if surplus % case.groups:
        raise NotApplicable("the surplus cannot be shared out among the groups")
    if surplus > 0:
        filling = Begin("filler", (3,) * (surplus // case.groups * size))
        world.perform(filling)
        world.perform(EndStep())
    if world.view.free != case.need + case.spare:
        _raise(world, f"a sequence of {surplus} full blocks did not take {surplus} blocks")
    return world


def _raise(world: World, message: str) -> None:
    raise Violation(message, story=world.story(message), timeline=world.timeline(message, ()))


def search_exact_fit(subject: Subject, effort: Effort) -> Outcome:
    """All cases, small blocks first."""
    return try_all(subject, effort, cases(subject), judge_exact_fit)


__all__ = ["ExactFit", "cases", "judge_exact_fit", "search_exact_fit"]
