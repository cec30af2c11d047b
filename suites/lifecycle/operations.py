"""What can be asked of a cache manager, as data: a script of these replays on any adapter, with no generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from kvbench.interface import PoolSpec


def told_tokens(tokens: Sequence[int]) -> str:
    """Tokens for people: runs are counted ("1x5 2")."""
    runs = [(token, len(list(run))) for token, run in groupby(tokens)]
    return " ".join(f"{token}" if count == 1 else f"{token}x{count}" for token, count in runs) or "none"


@dataclass(frozen=True)
class Begin:
    """Admit a prompt."""

    seq: str
    tokens: tuple[int, ...]
    namespace: str | None = None
    op: Literal["begin"] = "begin"

    def told(self) -> str:
        """The operation in words."""
        under = "" if self.namespace is None else f" in namespace {self.namespace!r}"
        return f"begin {self.seq}{under} with {len(self.tokens)} tokens ({told_tokens(self.tokens)})"


@dataclass(frozen=True)
class Extend:
    """Slots for the next chunk of a prompt, or for decoded tokens."""

    seq: str
    tokens: tuple[int, ...]
    op: Literal["extend"] = "extend"

    def told(self) -> str:
        """The operation in words."""
        return f"extend {self.seq} by {len(self.tokens)} tokens ({told_tokens(self.tokens)})"


@dataclass(frozen=True)
class Draft:
    """Slots for drafts. The step's end accepts the first `accepted` and truncates the others."""

    seq: str
    tokens: tuple[int, ...]
    accepted: int
    op: Literal["draft"] = "draft"

    def told(self) -> str:
        """The operation in words."""
        drafts = f"{len(self.tokens)} drafts ({told_tokens(self.tokens)})"
        return f"extend {self.seq} by {drafts}, of which {self.accepted} will be accepted"


@dataclass(frozen=True)
class Truncate:
    """Drop accepted tokens: keep the first `length`."""

    seq: str
    length: int
    op: Literal["truncate"] = "truncate"

    def told(self) -> str:
        """The operation in words."""
        return f"truncate {self.seq} to {self.length} tokens"


@dataclass(frozen=True)
class Fork:
    """A second sequence that starts as a copy of the first."""

    parent: str
    child: str
    op: Literal["fork"] = "fork"

    def told(self) -> str:
        """The operation in words."""
        return f"fork {self.parent} into {self.child}"


@dataclass(frozen=True)
class Free:
    """Let go of a sequence."""

    seq: str
    op: Literal["free"] = "free"

    def told(self) -> str:
        """The operation in words."""
        return f"free {self.seq}"


@dataclass(frozen=True)
class Preempt:
    """Take a sequence's blocks away, to compute it again later."""

    seq: str
    op: Literal["preempt"] = "preempt"

    def told(self) -> str:
        """The operation in words."""
        return f"preempt {self.seq}"


@dataclass(frozen=True)
class Resume:
    """Allocate a preempted sequence again."""

    seq: str
    op: Literal["resume"] = "resume"

    def told(self) -> str:
        """The operation in words."""
        return f"resume {self.seq}"


@dataclass(frozen=True)
class SwapOut:
    """Move a sequence to the host pool."""

    seq: str
    op: Literal["swap_out"] = "swap_out"

    def told(self) -> str:
        """The operation in words."""
        return f"swap {self.seq} out"


@dataclass(frozen=True)
class SwapIn:
    """Move a sequence back from the host pool."""

    seq: str
    op: Literal["swap_in"] = "swap_in"

    def told(self) -> str:
        """The operation in words."""
        return f"swap {self.seq} in"


@dataclass(frozen=True)
class Reset:
    """Forget every cached prefix."""

    op: Literal["reset"] = "reset"

    def told(self) -> str:
        """The operation in words."""
        return "reset the prefix cache"


@dataclass(frozen=True)
class EndStep:
    """Close an engine step: owed copies, all writes, all reads, commits.

    chunk: each sequence computes at most so many of its waiting tokens (None: all of them).
    """

    chunk: int | None = None
    op: Literal["end_step"] = "end_step"

    def told(self) -> str:
        """The operation in words."""
        return "end the step" if self.chunk is None else f"end the step, at most {self.chunk} tokens a sequence"


MisuseKind = Literal[
    "free_unknown",
    "free_twice",
    "begin_live",
    "extend_unknown",
    "commit_unknown",
    "commit_beyond",
    "truncate_unknown",
    "truncate_negative",
    "truncate_beyond",
    "fork_unknown",
    "fork_onto_live",
    "preempt_unknown",
    "resume_running",
    "swap_out_unknown",
    "swap_in_running",
]


@dataclass(frozen=True)
class Misuse:
    """Something that no caller should do. It must be refused, or change nothing.

    seq: the sequence that is misused: a live one, or for the kinds about unknown ones a name never begun.
    """

    kind: MisuseKind
    seq: str
    op: Literal["misuse"] = "misuse"

    def told(self) -> str:
        """The operation in words."""
        return f"misuse: {self.kind.replace('_', ' ')} ({self.seq})"


Operation = (
    Begin | Extend | Draft | Truncate | Fork | Free | Preempt | Resume | SwapOut | SwapIn | Reset | EndStep | Misuse
)


@dataclass(frozen=True)
class CacheShape:
    """The K/V cache that a joined script writes to and reads through."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Script:
    """A pool and what is asked of its manager, in order.

    kernel: the cache that holds the rows; None keeps them in an array of integers, which judges the manager alone.

    Operations that do not apply when their turn comes are left out: what was refused on one adapter may have been
    granted on another.
    """

    pool: PoolSpec
    operations: tuple[Operation, ...]
    kernel: CacheShape | None = None


__all__ = [
    "Begin", "CacheShape", "Draft", "EndStep", "Extend", "Fork", "Free", "Misuse", "MisuseKind", "Operation",
    "Preempt", "Reset", "Resume", "Script", "SwapIn", "SwapOut", "Truncate", "told_tokens",
]  # fmt: skip
