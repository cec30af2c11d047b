"""What the rules of the state machine do: each makes a few operations, among them the situations that chance avoids.

The choices of a rule follow from one number, so that it costs hypothesis one draw. Prompts come from one small
family: all tokens are 1 but for one, so that equal blocks at different depths, common prefixes of every length and
divergence at any place come up all the time. Rules that need an undeclared operation do not exist.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kvbench.checks import Failure, NotApplicable, Violation
from kvbench.interface import GroupSpec, ManagerCapabilities, PoolSpec
from kvbench.subject import Subject
from kvbench.suites.lifecycle.misuse import CALLS
from kvbench.suites.lifecycle.operations import (
    Begin,
    CacheShape,
    Draft,
    EndStep,
    Extend,
    Fork,
    Free,
    Misuse,
    Operation,
    Preempt,
    Reset,
    Resume,
    Script,
    SwapIn,
    SwapOut,
    Truncate,
)
from kvbench.suites.lifecycle.regimes import reached
from kvbench.suites.lifecycle.run import World, new_world
from kvbench.suites.lifecycle.shrink import sequence_name

T = TypeVar("T")

BLOCK_SIZES = (1, 2, 3, 4, 5, 8, 16, 32, 48, 64, 96, 128, 192, 256)
"""Candidates; those that a subject declares are used, the smallest ones most."""

LONGEST_PROMPT = 320
"""Tokens of a prompt, where blocks are so large that a whole pool would be too much to compute."""

NAMESPACES = (None, None, None, None, None, None, "", "red", "blue")
MOST_LIVE = 6
WINDOWS = (1, 2, 3, 4, 5, 7)


class Choices:
    """Choices that follow from one number, by Knuth's linear congruential generator (MMIX)."""

    def __init__(self, number: int) -> None:
        self.state = number

    def below(self, count: int) -> int:
        """One of 0 .. count - 1."""
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        return (self.state >> 33) % max(count, 1)

    def among(self, options: Sequence[T]) -> T:
        """One of `options`, which is not empty."""
        return options[self.below(len(options))]


@dataclass
class Hunt:
    """One search: what is hunted on, how long, and what came of it.

    kernel: the cache of joined scripts. misuse: whether forbidden calls are made as well.
    """

    subject: Subject
    kernel: CacheShape | None
    misuse: bool
    deadline: float
    cases: int = 0
    operations: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None

    def over(self) -> bool:
        """Whether time is up. Once something is found it is reproduced, however late it is."""
        return self.failure is None and time.monotonic() > self.deadline


def draw_pool(declared: ManagerCapabilities, sizes: list[int], joined: bool, choices: Choices) -> PoolSpec:
    """A small pool that the manager declares."""
    size = sizes[min(choices.below(len(sizes)), choices.below(len(sizes)))]
    # A kernel's step costs by the row: fewer of them, and the same situations.
    blocks = 3 + choices.below(6) if joined else 2 + choices.below(9)
    groups: tuple[GroupSpec, ...] = (GroupSpec(),)
    if declared.windows and not joined and choices.below(3) == 0:
        groups = (GroupSpec(choices.among(WINDOWS)),)
        if declared.max_groups > 1 and choices.below(2):
            groups = (GroupSpec(), *groups)
    swap = "swap" in declared.operations and not joined
    longest = 2 * blocks * size
    if not declared.paged:
        # Each sequence takes its whole length at once, so a few must fit side by side.
        longest = 4 * size
        blocks = 8 + choices.below(9)
    return PoolSpec(
        num_blocks=blocks,
        block_size=size,
        groups=groups,
        prefix_caching=declared.prefix_caching and choices.below(8) > 0,
        host_blocks=choices.below(blocks + 2) if swap else 0,
        max_sequences=MOST_LIVE,
        max_length=longest,
    )


def block_sizes(subject: Subject, joined: bool) -> list[int]:
    """Block sizes to try, smallest first."""
    sizes = subject.manager.block_sizes.among(BLOCK_SIZES)
    if joined:
        both = [size for size in sizes if size in subject.kernel.block_sizes]
        sizes = both or [size for size in subject.kernel.block_sizes.among(BLOCK_SIZES) if size in sizes]
    return sizes[:7]


class Rules:
    """What the rules of the machine do, apart from hypothesis."""

    def __init__(self, hunt: Hunt) -> None:
        self.hunt = hunt
        self.world: World | None = None
        self.names = 0
        self.turn = 0
        self.prompts: list[tuple[int, ...]] = []

    # -- the frame ---------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """A fresh pool."""
        hunt = self.hunt
        if hunt.over():
            return
        choices = Choices(number)
        sizes = block_sizes(hunt.subject, hunt.kernel is not None)
        pool = draw_pool(hunt.subject.manager, sizes, hunt.kernel is not None, choices)
        with contextlib.suppress(NotApplicable):
            self.world = new_world(hunt.subject, pool, hunt.kernel)
            hunt.cases += 1
        self.script = Script(pool, (), hunt.kernel)

    def do(self, operation: Operation) -> bool:
        """Perform an operation; whether it was granted. A failure is kept and raised."""
        world = self.world
        if world is None or self.hunt.over():
            return False
        name = getattr(operation, "seq", getattr(operation, "parent", None))
        seq = copy(world.model.live.get(name)) if name is not None else None
        before = world.view
        answer = self._guarded(lambda: world.perform(operation))
        if answer is None:
            return False
        self.hunt.operations += 1
        self.hunt.reached.update(reached(operation, answer, before, world.view, seq, world.model))
        return answer.refused is None

    def stop(self) -> None:
        """Close the run: everything is freed and the pool must be whole."""
        if self.world is not None and not self.hunt.over():
            self._guarded(self.world.finish)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Run `call`; a violation becomes the hunt's failure and ends this run."""
        world = self.world
        assert world is not None
        try:
            return call()
        except NotApplicable:
            self.world = None
            return None
        except Violation as violation:
            script = Script(self.script.pool, world.operations, self.script.kernel)
            self.hunt.failure = Failure(script, violation)
            self.world = None
            raise

    # -- choices -----------------------------------------------------------------------------------------------------

    def choices(self, number: int) -> Choices:
        """Choices for the next rule. Hypothesis likes to repeat numbers; what follows from them should still differ."""
        self.turn += 1
        return Choices(number + (self.turn << 24))

    def running(self) -> list[str]:
        """Sequences that can be asked for more."""
        return [] if self.world is None else [seq.name for seq in self.world.model.running()]

    def in_state(self, state: str) -> list[str]:
        """Sequences that are in `state`."""
        return [] if self.world is None else [s.name for s in self.world.model.live.values() if s.state == state]

    def new_name(self) -> str:
        """A name that was never used."""
        self.names += 1
        return sequence_name(self.names - 1)

    def prompt(self, choices: Choices) -> tuple[int, ...]:
        """A prompt around a multiple of the block size, of ones but for one token."""
        pool = self.script.pool
        fits = min(pool.max_length, (pool.num_blocks + 1) * pool.block_size, LONGEST_PROMPT)
        if self.prompts and choices.below(3) == 0:
            # What was asked before: the same, cut short, or gone on with.
            known = choices.among(self.prompts)
            cut = len(known) - choices.among((0, 0, 1, pool.block_size))
            return (known[: max(1, cut)] + (1 + choices.below(2),) * choices.below(pool.block_size + 2))[:fits]
        blocks = min(choices.below(5), choices.below(fits // pool.block_size + 1))
        length = max(1, min(fits, blocks * pool.block_size + choices.below(3) - 1))
        tokens = [1] * length
        variant = choices.below(6) - 2
        if variant > 0:
            # At the start of a block, in its middle, at its end.
            places = sorted({*range(0, length, pool.block_size), length // 2, length - 1})
            tokens[choices.among(places)] = 1 + variant
        self.prompts.append(tuple(tokens))
        return tuple(tokens)

    def namespace(self, choices: Choices) -> str | None:
        """A namespace, if they are declared."""
        return choices.among(NAMESPACES) if self.hunt.subject.manager.namespaces else None

    def some_tokens(self, choices: Choices) -> tuple[int, ...]:
        """A few tokens to go on with."""
        size = self.script.pool.block_size
        count = choices.among((1, 1, 1, 2, size, size + 1))
        return (1 + choices.below(2),) * count

    # -- rules -------------------------------------------------------------------------------------------------------

    def begin(self, choices: Choices) -> None:
        """Admit a prompt, and mostly compute it, at once or in chunks."""
        prompt, namespace = self.prompt(choices), self.namespace(choices)
        if not self.do(Begin(self.new_name(), prompt, namespace)) and choices.below(3):
            self.free(choices)
            self.do(Begin(self.new_name(), prompt, namespace))
        self.end_step(choices)

    def twins(self, choices: Choices) -> None:
        """The same prompt twice in one step."""
        prompt, namespace = self.prompt(choices), self.namespace(choices)
        self.do(Begin(self.new_name(), prompt, namespace))
        if self.do(Begin(self.new_name(), prompt, namespace)):
            self.hunt.reached["same prompt twice in a step"] += 1
        self.end_step(choices)

    def fill(self, choices: Choices) -> None:
        """A prompt that takes all free blocks exactly, or one token more."""
        if self.world is None or not self.hunt.subject.manager.paged:
            return
        pool = self.script.pool
        length = self.world.view.free // len(pool.groups) * pool.block_size + choices.below(2)
        if 0 < length <= min(pool.max_length, LONGEST_PROMPT):
            value = 2 + choices.below(3)
            self.do(Begin(self.new_name(), (value, *[1] * (length - 1))))
            self.end_step(choices)

    def extend(self, choices: Choices) -> None:
        """Grow one sequence."""
        if names := self.running():
            self.do(Extend(choices.among(names), self.some_tokens(choices)))
            self.end_step(choices)

    def decode(self, choices: Choices) -> None:
        """Every sequence grows by a token."""
        token = 1 + choices.below(2)
        for name in self.running():
            self.do(Extend(name, (token,)))
        self.do(EndStep())

    def end_step(self, choices: Choices) -> None:
        """Close the step, mostly; chunk by chunk sometimes."""
        kind = choices.below(8)
        if kind == 0:
            return
        chunk = 1 + choices.below(self.script.pool.block_size + 1) if kind == 1 else None
        self.do(EndStep(chunk))

    def free(self, choices: Choices) -> None:
        """Let go of a sequence in whatever state it is."""
        if self.world is not None and self.world.model.live:
            self.do(Free(choices.among(list(self.world.model.live))))

    def again(self, choices: Choices) -> None:
        """A conversation's next turn: free a sequence and begin with what it said, and more."""
        if names := self.running():
            assert self.world is not None
            seq = self.world.model.live[choices.among(names)]
            tokens, namespace = tuple(seq.tokens), seq.namespace
            if self.do(Free(seq.name)):
                more = self.some_tokens(choices)[: choices.below(3)]
                self.do(Begin(self.new_name(), (tokens + more)[:LONGEST_PROMPT], namespace))
                self.do(EndStep())

    def churn(self, choices: Choices) -> None:
        """Sequences leave, and others of other lengths take their place in the same step."""
        if self.world is None:
            return
        for name in list(self.world.model.live)[: 1 + choices.below(2)]:
            self.do(Free(name))
        size = self.script.pool.block_size
        for _ in range(2 + choices.below(2)):
            self.do(Begin(self.new_name(), (2 + choices.below(8),) * (1 + choices.below(2 * size + 1))))
        self.end_step(choices)

    def flood(self, choices: Choices) -> None:
        """A prompt that nothing can hit, as large as fits, computed and freed: whatever is evictable is evicted."""
        name = self.new_name()
        if self.world is None:
            return
        pool = self.script.pool
        length = min(self.world.view.free // len(pool.groups) * pool.block_size, pool.max_length, LONGEST_PROMPT)
        if length and self.do(Begin(name, (5 + choices.below(4), *[1] * (length - 1)))):
            self.do(EndStep())
            self.do(Free(name))

    def abort(self, choices: Choices) -> None:
        """Admit, stop before anything is written, and ask for the same again."""
        prompt, namespace, name = self.prompt(choices), self.namespace(choices), self.new_name()
        if self.do(Begin(name, prompt, namespace)) and self.do(Free(name)):
            self.do(Begin(self.new_name(), prompt, namespace))
        self.end_step(choices)

    def draft(self, choices: Choices) -> None:
        """Drafts on one sequence; every number of them may be accepted."""
        if names := self.running():
            size = self.script.pool.block_size
            count = 1 + choices.below(min(size + 1, 6))
            name = choices.among(names)
            if choices.below(3) == 0:
                self.do(Extend(name, (1,)))
            self.do(Draft(name, (1 + choices.below(3),) * count, choices.below(count + 1)))
            self.end_step(choices)

    def truncate(self, choices: Choices) -> None:
        """Drop accepted tokens, then go on differently."""
        if names := self.running():
            assert self.world is not None
            name = choices.among(names)
            length = self.world.model.live[name].length
            if length > 1 and self.do(Truncate(name, length - 1 - choices.below(min(length - 1, 6)))):
                self.do(Extend(name, (3,) * (1 + choices.below(3))))
                self.end_step(choices)

    def fork(self, choices: Choices) -> None:
        """A sequence is forked once or twice, and the copies go on with other tokens."""
        if not (names := self.running()):
            return
        parent = choices.among(names)
        children = [self.new_name() for _ in range(1 + choices.below(2))]
        family = [parent, *[child for child in children if self.do(Fork(parent, child))]]
        order = family if choices.below(2) else family[::-1]
        for place, name in enumerate(order):
            if choices.below(3):
                self.do(Extend(name, (1 + place,)))
        self.end_step(choices)

    def rewrite(self, choices: Choices) -> None:
        """A sequence that others share drops tokens and puts other ones in their place."""
        names = [name for name in self.running() if self.world and self.world.model.live[name].length > 1]
        if not names:
            return
        assert self.world is not None
        name = choices.among(names)
        child = self.new_name()
        if self.do(Fork(name, child)) and self.do(EndStep()):
            author = choices.among((name, child))
            length = self.world.model.live[author].length
            dropped = 1 + choices.below(min(length - 1, self.script.pool.block_size))
            if self.do(Truncate(author, length - dropped)):
                self.do(Extend(author, (4,) * (1 + choices.below(dropped))))
                self.end_step(choices)

    def preempt(self, choices: Choices) -> None:
        """Take a sequence's blocks away."""
        if names := self.running():
            self.do(Preempt(choices.among(names)))

    def resume(self, choices: Choices) -> None:
        """Compute a preempted sequence again."""
        if names := self.in_state("preempted"):
            self.do(Resume(choices.among(names)))
            self.end_step(choices)

    def swap_out(self, choices: Choices) -> None:
        """Move a sequence, or all of them, to the host, and mostly back, when what they left has been used."""
        names = self.running()
        if choices.below(3) == 0:
            # Half computed.
            name, size = self.new_name(), self.script.pool.block_size
            if self.do(Begin(name, self.prompt(choices))) and self.do(EndStep(1 + choices.below(size + 1))):
                names = [name, *names]
        for name in names if choices.below(3) == 0 else names[:1]:
            self.do(SwapOut(name))
        self.do(EndStep())
        kind = choices.below(3)
        if kind:
            self.flood(choices)
            self.swap_in(choices)

    def swap_in(self, choices: Choices) -> None:
        """Move sequences back, in some order."""
        names = self.in_state("swapped")
        for name in names[::-1] if choices.below(2) else names[:1]:
            if self.do(SwapIn(name)) and choices.below(2):
                # What comes back is asked for, computed or not.
                assert self.world is not None
                seq = self.world.model.live[name]
                self.do(Begin(self.new_name(), (*seq.tokens, 1)[:LONGEST_PROMPT], seq.namespace))
        self.end_step(choices)

    def exchange(self, choices: Choices) -> None:
        """One sequence goes to the host and another comes back in the same step, then the first comes back, too."""
        here, away = self.running(), self.in_state("swapped")
        if not here:
            return
        leaving = choices.among(here)
        if not away:
            self.do(SwapOut(leaving))
            self.do(EndStep())
            self.fill(choices)
            here, away = [name for name in self.running() if name != leaving], self.in_state("swapped")
        if not (here and away):
            return
        leaving, coming = choices.among(here), choices.among(away)
        if self.do(SwapOut(leaving)):
            self.do(SwapIn(coming))
            self.do(EndStep())
            self.do(Free(coming))
            self.do(SwapIn(leaving))
            self.end_step(choices)

    def reset(self, choices: Choices) -> None:
        """Forget cached prefixes, then ask for one that was there."""
        prompt = self.prompt(choices)
        if self.world is not None and self.world.model.live and choices.below(2):
            prompt = tuple(choices.among(list(self.world.model.live.values())).tokens)
        if self.do(Reset()):
            self.do(Begin(self.new_name(), prompt[:LONGEST_PROMPT] or (1,)))
            self.end_step(choices)

    def misuse(self, choices: Choices) -> None:
        """A few things that no caller should do."""
        for _ in range(4):
            if self.world is None:
                return
            kind = choices.among(list(CALLS))
            freed = [name for name, _ in self.world.model.history if name not in self.world.model.live]
            if kind.endswith("_unknown"):
                self.do(Misuse(kind, self.new_name()))
            elif names := freed if kind == "free_twice" else self.running():
                self.do(Misuse(kind, choices.among(names)))


def rules_for(declared: ManagerCapabilities, joined: bool, misuse: bool) -> list[str]:
    """Names of the rules that make sense for what a manager declares."""
    names = ["churn", "begin", "twins", "fill", "extend", "decode", "free", "again", "flood"]
    for name in ("truncate", "fork", "preempt", "reset", "abort"):
        operation = "truncate_accepted" if name == "truncate" else name
        if operation in declared.operations:
            names.append(name)
    if "truncate" in declared.operations:
        names.append("draft")
    if {"fork", "truncate_accepted"} <= declared.operations:
        names.append("rewrite")
    if "preempt" in declared.operations:
        names.append("resume")
    if "swap" in declared.operations and not joined:
        names += ["swap_out", "swap_in", "exchange"]
    return [*names, "misuse"] if misuse else names


__all__ = ["BLOCK_SIZES", "Choices", "Hunt", "Rules", "block_sizes", "draw_pool", "rules_for"]
