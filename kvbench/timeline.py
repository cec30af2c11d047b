"""What happened to the blocks of a pool, step by step: how a counterexample is drawn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TimelineStep:
    """The pool after one operation.

    label: the operation in words ("begin a with 5 tokens").
    owners: for each block in use, the sequences whose tables hold it, as "block id" -> names.
    wrote, read: blocks that this operation's step wrote and read.
    bad: blocks where something went wrong here.
    note: what went wrong, or what is worth knowing.
    """

    label: str
    owners: dict[str, tuple[str, ...]]
    wrote: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Timeline:
    """Blocks x steps; `num_blocks` is the pool's size."""

    num_blocks: int
    steps: tuple[TimelineStep, ...]
