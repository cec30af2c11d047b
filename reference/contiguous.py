"""What paging is compared with: every sequence in one run of slots, reserved ahead.

Three policies, after Kwon et al. (SOSP 2023, sections 3.1 and 6.1):

- `reserve_max`: the longest length that is allowed, whatever a sequence will need.
- `buddy`: the power of two that holds what it needs now, from a buddy allocator. A sequence that outgrows its run moves
  to one of twice the size.
- `oracle`: exactly the length that it will reach, which no real system knows.

Units are slots of one token, or whatever else the caller counts in.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence


class Span(NamedTuple):
    """A run of slots."""

    start: int
    size: int


class AddressSpace(Protocol):
    """Hands out runs of one slot or more.

    free: slots that are not handed out. largest: the longest run that `take` can give.
    """

    slots: int
    free: int

    @property
    def largest(self) -> int: ...

    def take(self, size: int) -> int | None:
        """The start of a run of `size` slots, or None if there is none."""

    def give(self, span: Span) -> None:
        """Back again, as it was taken."""


class FirstFit:
    """The lowest hole that is large enough; holes that touch are one hole."""

    def __init__(self, slots: int) -> None:
        self.slots = self.free = slots
        self.starts = [0] if slots else []  # of the holes, ascending
        self.sizes = {0: slots} if slots else {}

    @property
    def largest(self) -> int:
        """The longest hole."""
        return max(self.sizes.values(), default=0)

    def take(self, size: int) -> int | None:
        """The lowest run of `size` slots. Costs a look at each hole below it."""
        for index, start in enumerate(self.starts):
            hole = self.sizes[start]
            if hole < size:
                continue
            del self.sizes[start]
            if hole == size:
                del self.starts[index]
            else:
                self.starts[index] = start + size
                self.sizes[start + size] = hole - size
            self.free -= size
            return start
        return None

    def give(self, span: Span) -> None:
        """Make a hole, joined with the holes before and after it."""
        self.free += span.size
        start, end = span.start, span.start + span.size
        index = bisect_left(self.starts, start)
        if index < len(self.starts) and self.starts[index] == end:
            end += self.sizes.pop(self.starts.pop(index))
        if index > 0 and self.starts[index - 1] + self.sizes[self.starts[index - 1]] == start:
            start = self.starts[index - 1]
        else:
            self.starts.insert(index, start)
        self.sizes[start] = end - start


class Buddies:
    """Runs of powers of two, each at a multiple of its size; the two halves of a run join when both are free.

    A space that is no power of two starts as several runs, the largest first.
    """

    def __init__(self, slots: int) -> None:
        self.slots = self.free = slots
        self.runs: dict[int, list[int]] = {1 << order: [] for order in range(slots.bit_length())}  # ascending starts
        start = 0
        for size in reversed(self.runs):
            if slots & size:
                self.runs[size].append(start)
                start += size

    @property
    def largest(self) -> int:
        """The largest free run."""
        return max((size for size, starts in self.runs.items() if starts), default=0)

    def take(self, size: int) -> int | None:
        """The lowest of the smallest free runs that hold `size`, a power of two, halved until it fits."""
        found = next((run for run, starts in self.runs.items() if run >= size and starts), None)
        if found is None:
            return None
        start = self.runs[found].pop(0)
        while found > size:
            found //= 2
            insort(self.runs[found], start + found)
        self.free -= size
        return start

    def give(self, span: Span) -> None:
        """Free a run, then join it with its other half as long as that is free as a whole."""
        self.free += span.size
        start, size = span
        while self._withdraw(start ^ size, size):
            start = min(start, start ^ size)
            size *= 2
        insort(self.runs[size], start)

    def _withdraw(self, start: int, size: int) -> bool:
        """Take this very run out of the free ones, if it is there."""
        starts = self.runs[size]
        index = bisect_left(starts, start)
        if index == len(starts) or starts[index] != start:
            return False
        del starts[index]
        return True


@dataclass(frozen=True)
class Account:
    """Where the slots are; `used` + `reserved` + `internal` + `free` is all of them.

    used: hold a token. reserved: will hold one before their sequence finishes. internal: taken by a sequence that never
    fills them (internal fragmentation). largest_hole: the longest run of free slots that can be given.
    """

    used: int
    reserved: int
    internal: int
    free: int
    largest_hole: int

    @property
    def external_fragmentation(self) -> float:
        """Share of the free slots that one request cannot have: 1 - largest hole / free."""
        return 1 - self.largest_hole / self.free if self.free else 0.0


@dataclass
class _Resident:
    tokens: int
    final: int
    span: Span

    @property
    def useful(self) -> int:
        """Slots that hold a token before the sequence finishes."""
        return min(self.span.size, max(self.final, self.tokens))


class ContiguousPool:
    """Sequences in runs of slots. What cannot be had is `OutOfBlocks`, and leaves everything as it was.

    reserve: slots to reserve for (tokens now, tokens in the end). moved: tokens that were copied because their sequence
    outgrew its run. growth, unit: sequences grow by one token at a time, and slots are counted one by one.
    """

    growth = 1
    unit = 1

    def __init__(self, space: AddressSpace, reserve: Callable[[int, int], int]) -> None:
        self.space = space
        self.reserve = reserve
        self.moved = 0
        self._residents: dict[str, _Resident] = {}
        self._used = self._useful = 0

    @property
    def slots(self) -> int:
        """Slots of the whole pool."""
        return self.space.slots

    def free_slots(self) -> int:
        """Slots that no sequence has reserved."""
        return self.space.free

    def wanted(self, tokens: int, final: int) -> int:
        """Slots that admitting a sequence reserves."""
        return self.reserve(tokens, final)

    def admit(self, seq: str, tokens: int, final: int) -> None:
        """Reserve a run for a sequence of `tokens` tokens that will reach `final`."""
        if seq in self._residents:
            raise UnknownSequence(f"sequence {seq!r} is held already; release it first or choose another name")
        if tokens < 0 or final < tokens:
            raise InvalidRequest(f"{seq!r} cannot grow from {tokens} tokens to {final}")
        resident = _Resident(tokens, final, self._take(seq, tokens, final))
        self._residents[seq] = resident
        self._count(resident, 1)

    def grow(self, seq: str, tokens: int, added: int = 1) -> None:
        """`added` tokens more than the `tokens` that `seq` has; moves it where its run is too short and that helps."""
        resident = self._find(seq)
        if tokens != resident.tokens or added < 0:
            raise InvalidRequest(f"{seq!r} has {resident.tokens} tokens; it cannot grow from {tokens} by {added}")
        length, old = tokens + added, resident.span
        span = old if length <= old.size else self._take(seq, length, max(length, resident.final))
        self._count(resident, -1)
        resident.tokens, resident.span = length, span
        self._count(resident, 1)
        if span is not old:
            self.moved += tokens
            self._give(old)

    def release(self, seq: str) -> None:
        """Let go of a sequence."""
        resident = self._find(seq)
        self._count(resident, -1)
        self._give(resident.span)
        del self._residents[seq]

    def span(self, seq: str) -> Span:
        """The run that `seq` has."""
        return self._find(seq).span

    def account(self) -> Account:
        """Where the slots are now."""
        space = self.space
        return Account(
            used=self._used,
            reserved=self._useful - self._used,
            internal=space.slots - space.free - self._useful,
            free=space.free,
            largest_hole=space.largest,
        )

    def _take(self, seq: str, tokens: int, final: int) -> Span:
        size = self.reserve(tokens, final)
        if size < tokens:
            raise OutOfBlocks(
                f"{seq!r} has {tokens} tokens and may reserve {size} slots at most; allow longer sequences"
            )
        start = self.space.take(size) if size else 0
        if start is None:
            raise OutOfBlocks(
                f"{seq!r} needs a run of {size} slots; {self.space.free} of {self.slots} are free, "
                f"{self.space.largest} at most in one run; release another sequence"
            )
        return Span(start, size)

    def _give(self, span: Span) -> None:
        if span.size:
            self.space.give(span)

    def _count(self, resident: _Resident, sign: int) -> None:
        self._used += sign * resident.tokens
        self._useful += sign * resident.useful

    def _find(self, seq: str) -> _Resident:
        if seq not in self._residents:
            raise UnknownSequence(f"no sequence {seq!r}; admit it first ({len(self._residents)} are held)")
        return self._residents[seq]


def reserve_max(slots: int, max_length: int) -> ContiguousPool:
    """Every sequence reserves `max_length` slots; what is left of the pool beyond a multiple of that is never used."""
    return ContiguousPool(FirstFit(slots), lambda tokens, final: max_length)


def buddy(slots: int) -> ContiguousPool:
    """Every sequence reserves the power of two that holds its present tokens."""
    return ContiguousPool(Buddies(slots), lambda tokens, final: 1 << (tokens - 1).bit_length() if tokens else 0)


def oracle(slots: int) -> ContiguousPool:
    """Every sequence reserves the length that it will reach."""
    return ContiguousPool(FirstFit(slots), lambda tokens, final: final)
