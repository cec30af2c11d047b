"""What triggers of faults in managers are written in: steps of an engine over a memory that says what was read.

It is written apart from the suites, which must find a fault on their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvbench.errors import OutOfBlocks
from kvbench.interface import HOLE, Copy, GroupSpec, PoolSpec, Tier
from kvbench.subject import Subject

Row = tuple[object, ...]
"""Who a K/V row belongs to: (namespace, its tokens up to and including its own, group)."""


class Scene:
    """A manager, its device and host memory, and what each sequence ought to read.

    wrong: what was misread, in words. num_blocks, block_size and the rest: as in `PoolSpec`.
    """

    def __init__(
        self,
        subject: Subject,
        num_blocks: int = 8,
        block_size: int = 2,
        windows: Sequence[int | None] = (None,),
        **pool: Any,
    ) -> None:
        groups = tuple(GroupSpec(window) for window in windows)
        self.spec = PoolSpec(num_blocks, block_size, groups, **pool)
        self.manager: Any = subject.new_manager(self.spec)
        self.device: dict[tuple[int, int], Row] = {}
        self.host: dict[tuple[int, int], Row] = {}
        self.tokens: dict[str, list[int]] = {}
        self.namespace: dict[str, str | None] = {}
        self.written: dict[str, int] = {}
        self.away: set[str] = set()
        self.wrong: list[str] = []

    # -- what a caller asks for --------------------------------------------------------------------------------------

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        """Admit a sequence; return how many tokens are cached."""
        cached = int(self.manager.begin(seq, tokens, namespace))
        self.tokens[seq], self.namespace[seq], self.written[seq] = list(tokens), namespace, cached
        return cached

    def extend(self, seq: str, *tokens: int, speculative: bool = False) -> None:
        """More tokens."""
        self.manager.extend(seq, tokens, speculative)
        self.tokens[seq] += tokens

    def truncate(self, seq: str, length: int) -> None:
        """Drop what stands behind `length`."""
        self.manager.truncate(seq, length)
        del self.tokens[seq][length:]
        self.written[seq] = min(self.written[seq], length)

    def fork(self, parent: str, child: str) -> None:
        """A second sequence with the parent's tokens."""
        self.manager.fork(parent, child)
        self.tokens[child], self.namespace[child] = self.tokens[parent].copy(), self.namespace[parent]
        self.written[child] = self.written[parent]

    def free(self, seq: str) -> None:
        """Let go of a sequence."""
        self.manager.free(seq)
        del self.tokens[seq], self.namespace[seq], self.written[seq]
        self.away.discard(seq)

    def leave(self, how: str, seq: str) -> None:
        """`preempt` or `swap_out`."""
        getattr(self.manager, how)(seq)
        self.away.add(seq)

    def preempt(self, seq: str) -> None:
        """Give up its blocks."""
        self.leave("preempt", seq)

    def resume(self, seq: str) -> int:
        """Admit it again; return how many tokens are cached."""
        self.written[seq] = int(self.manager.resume(seq))
        self.away.discard(seq)
        return self.written[seq]

    def swap_out(self, seq: str) -> None:
        """Move it to the host."""
        self.leave("swap_out", seq)

    def swap_in(self, seq: str) -> None:
        """Move it back."""
        self.manager.swap_in(seq)
        self.away.discard(seq)

    def refused(self, call: Callable[..., Any], *arguments: Any) -> bool:
        """Whether a call is refused for want of blocks."""
        try:
            call(*arguments)
        except OutOfBlocks:
            return True
        return False

    # -- what happens in memory --------------------------------------------------------------------------------------

    def copy(self, copies: Sequence[Copy]) -> None:
        """Carry copies out, in order."""
        for source, target, tier in copies:
            origin = self.host if tier is Tier.IN else self.device
            goal = self.host if tier is Tier.OUT else self.device
            rows = {place: origin.get((source, place)) for place in range(self.spec.block_size)}
            for place, row in rows.items():
                goal.pop((target, place), None)
                if row is not None:
                    goal[target, place] = row

    def step(self, commit: bool = True, **upto: int) -> list[str]:
        """Copies, writes, reads, commits. upto: tokens of a sequence that exist after the step; all, if not named.

        Returns what this step misread.
        """
        self.copy(self.manager.take_copies())
        running = [seq for seq in self.tokens if seq not in self.away]
        goal = {seq: upto.get(seq, len(self.tokens[seq])) for seq in running}
        for seq in running:
            self._write(seq, self.written[seq], goal[seq])
        wrong = [words for seq in running for words in self._read(seq, self.written[seq], goal[seq])]
        for seq in running:
            self.written[seq] = max(self.written[seq], goal[seq])
            if commit:
                self.manager.commit(seq, self.written[seq])
        self.wrong += wrong
        return wrong

    def _rows(self, seq: str, group: int, start: int, stop: int) -> list[tuple[tuple[int, int], Row]]:
        """Where rows start .. stop - 1 rest according to the table, and who they should be; past its end in a hole."""
        size = self.spec.block_size
        table = [*self.manager.block_table(seq, group), *[HOLE] * (stop // size + 1)]
        tokens, namespace = tuple(self.tokens[seq]), self.namespace[seq]
        return [
            ((table[position // size], position % size), (namespace, tokens[: position + 1], group))
            for position in range(start, stop)
        ]

    def _write(self, seq: str, start: int, stop: int) -> None:
        for group in range(len(self.spec.groups)):
            self.device.update(row for row in self._rows(seq, group, start, stop) if row[0][0] != HOLE)

    def _read(self, seq: str, start: int, stop: int) -> list[str]:
        """Everything that a query at `start` or later sees."""
        wrong = []
        for group, spec in enumerate(self.spec.groups):
            first = 0 if spec.window is None else max(0, start - spec.window + 1)
            for (block, place), row in self._rows(seq, group, first, stop):
                found = self.device.get((block, place))
                if found != row:
                    position = len(row[1]) - 1 if isinstance(row[1], tuple) else 0
                    wrong.append(f"{seq} read {found} at position {position}, block {block}")
        return wrong

    # -- what a trigger looks at -------------------------------------------------------------------------------------

    def said(self) -> str | None:
        """The first misreading, or None."""
        return self.wrong[0] if self.wrong else None

    @property
    def leaked(self) -> str | None:
        """With nothing running: whether blocks are missing."""
        free, usable = self.manager.free_blocks, self.manager.usable_blocks
        return None if free == usable else f"{free} of {usable} blocks are free with no sequence left"


__all__ = ["Row", "Scene"]
