"""A serving loop without a model: which sequences hold how many slots while a trace is served.

Continuous batching, one step after the other. Waiting requests are admitted first come, first served, as far as slots
and `max_sequences` allow; a prompt is computed whole in the step that admits it, and in each later step every running
sequence writes one token. When a sequence can have no slot for its next token, the one admitted last is preempted: its
slots are released, and it waits in front of all others to compute its tokens again. Nothing is admitted between a
preemption and the next time that a request finishes or arrives, so that the two do not take turns.

Steps in which nothing is admitted, grown or released are passed over at once; their slots are counted in closed form.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from kvbench.errors import OutOfBlocks
from kvbench.workloads import Request


class SlotPool(Protocol):
    """What the loop asks of a cache. Numbers are slots of one token. `OutOfBlocks` leaves everything as it was.

    slots: of the whole pool. growth: tokens that a sequence is grown by at a time. unit: slots that are handed out
    together; those of the unit that holds a sequence's last token are not called reserved.
    """

    @property
    def slots(self) -> int: ...

    @property
    def growth(self) -> int: ...

    @property
    def unit(self) -> int: ...

    def free_slots(self) -> int:
        """Slots that are obtainable now."""

    def wanted(self, tokens: int, final: int) -> int:
        """Slots that admitting a sequence of `tokens` tokens asks for; `final` is the length that it will reach."""

    def admit(self, seq: str, tokens: int, final: int) -> None:
        """Slots for a sequence of `tokens` tokens, which are computed at once."""

    def grow(self, seq: str, tokens: int, added: int) -> None:
        """Slots for `added` tokens more than the `tokens` that it has slots for; these have been computed."""

    def release(self, seq: str) -> None:
        """Let go of a sequence."""


@dataclass(frozen=True)
class Usage:
    """Sums over all steps in which a sequence ran, in slots x steps; and what happened.

    held: slots with K/V. reserved: empty, in a unit that holds no token yet, and filled before their sequence finishes.
    taken: not obtainable by others. fragmented: free, as many as the first waiting request asks for, and yet refused.
    running: sequences. refused: requests that do not fit into the empty pool. recomputed: tokens computed again.
    """

    steps: int
    held: int
    reserved: int
    taken: int
    fragmented: int
    running: int
    finished: int
    refused: int
    preemptions: int
    recomputed: int


def serve(
    pool: SlotPool,
    requests: Sequence[Request],
    max_sequences: int,
    step_seconds: float | None = None,
    settled: Callable[[int], None] = lambda count: None,
) -> Usage:
    """Serve `requests` from `pool`, at most `max_sequences` at a time.

    step_seconds: how long a step takes, for arrivals by their timestamps; None: all are waiting from the start.
    settled: told after each step with finished or refused requests how many there are so far.
    """
    loop = _Loop(pool, requests, max_sequences, step_seconds)
    loop.run(settled)
    return loop.usage()


@dataclass(slots=True)
class _Waiting:
    index: int
    tokens: int


@dataclass(slots=True)
class _Running:
    """A sequence that holds `tokens` tokens in step `start`, and one more in each step after it.

    asked: tokens that slots have been asked for. capacity: slots that it has taken, since step `since`.
    """

    index: int
    name: str
    tokens: int
    start: int
    final: int
    asked: int
    capacity: int
    since: int

    def held(self, step: int) -> int:
        return self.tokens + step - self.start

    def useful(self) -> int:
        """Slots that hold K/V before the sequence finishes."""
        return min(self.capacity, self.final)

    def reserved(self, step: int, unit: int) -> int:
        """Slots x steps, since `since` and before `step`, of useful slots behind the unit of the last token."""
        first, useful = self.held(self.since), self.useful()
        if -(-first // unit) * unit >= useful:  # no unit behind that of the last token
            return 0
        last = min(self.held(step) - 1, useful // unit * unit)
        return (last - first + 1) * useful - _rounded_up(last, unit) + _rounded_up(first - 1, unit)


def _rounded_up(count: int, unit: int) -> int:
    """Sum of 1..count, each rounded up to a multiple of `unit`."""
    full, rest = divmod(count, unit)
    return unit * unit * full * (full + 1) // 2 + rest * unit * (full + 1)


@dataclass
class _Loop:
    pool: SlotPool
    requests: Sequence[Request]
    max_sequences: int
    step_seconds: float | None
    waiting: deque[_Waiting] = field(default_factory=deque)
    running: dict[int, _Running] = field(default_factory=dict)  # in order of admission
    due: list[tuple[int, bool, int]] = field(default_factory=list)  # (step, grows, admission), a heap
    arrived: int = 0
    admissions: int = 0
    free: int = 0
    blocked: int | None = None  # slots that the first waiting request was refused
    held_at_zero: int = 0  # what the running sequences would hold in step 0, summed
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys((each.name for each in fields(Usage)), 0))

    def run(self, settled: Callable[[int], None]) -> None:
        step = 0
        self.free = self.pool.free_slots()
        while True:
            before = self._settled()
            freed = self._finish_and_grow(step)
            if self._arrive(step) or freed or not self.running:
                self._admit(step)
            if self._settled() != before:
                settled(self._settled())
            following = self._next_step()
            if following is None:
                return
            self._count(step, following)
            step = following

    def usage(self) -> Usage:
        return Usage(**self.totals)

    def _settled(self) -> int:
        return self.totals["finished"] + self.totals["refused"]

    def _next_step(self) -> int | None:
        steps = [self.due[0][0]] if self.due else []
        if self.arrived < len(self.requests):
            steps.append(self._arrival_step(self.arrived))
        return min(steps, default=None)

    def _arrival_step(self, index: int) -> int:
        if self.step_seconds is None:
            return 0
        return math.ceil(self.requests[index].arrival / self.step_seconds)

    def _arrive(self, step: int) -> bool:
        """Put those that have arrived by `step` into the queue; whether there were any."""
        first = self.arrived
        while self.arrived < len(self.requests) and self._arrival_step(self.arrived) <= step:
            self.waiting.append(_Waiting(self.arrived, self.requests[self.arrived].prompt_tokens))
            self.arrived += 1
        return self.arrived > first

    def _finish_and_grow(self, step: int) -> bool:
        """Release what has finished, then give slots to what has filled its own; whether anything finished."""
        freed = False
        while self.due and self.due[0][0] <= step:
            _, grows, admission = heapq.heappop(self.due)
            sequence = self.running.get(admission)
            if sequence is None:
                continue  # preempted meanwhile
            if grows:
                self._grow(admission, sequence, step)
            else:
                self._release(admission, step)
                self.totals["finished"] += 1
                freed = True
        return freed

    def _admit(self, step: int) -> None:
        """Admit from the front of the queue until one is refused."""
        self.blocked = None
        while self.waiting and len(self.running) < self.max_sequences:
            first = self.waiting[0]
            final = self.requests[first.index].final_tokens
            wanted = self.pool.wanted(first.tokens, final)
            name = f"request-{first.index}"
            # Asking for more than is free is left out: it would fail, at the cost of handing over a whole prompt.
            if (self.running and self.free < wanted) or not self._try_admit(name, first.tokens, final):
                if self.running:
                    self.blocked = wanted
                    return
                self.totals["refused"] += 1
                self.waiting.popleft()
                continue
            self.waiting.popleft()
            capacity = max(first.tokens, self._newly_taken())
            sequence = _Running(first.index, name, first.tokens, step, final, first.tokens, capacity, step)
            self.running[self.admissions] = sequence
            self.held_at_zero += sequence.held(0)
            self._schedule(self.admissions, sequence)
            self.admissions += 1

    def _try_admit(self, name: str, tokens: int, final: int) -> bool:
        try:
            self.pool.admit(name, tokens, final)
        except OutOfBlocks:
            return False
        return True

    def _schedule(self, admission: int, sequence: _Running) -> None:
        """Note the first step in which the sequence holds more than its slots, or has finished."""
        grows = sequence.capacity < sequence.final
        step = sequence.start + sequence.useful() - sequence.tokens + 1
        heapq.heappush(self.due, (step, grows, admission))

    def _grow(self, admission: int, sequence: _Running, step: int) -> None:
        """Slots for the next tokens; preempts the last admitted until there are some."""
        target = min(sequence.capacity + self.pool.growth, sequence.final)
        while True:
            try:
                self.pool.grow(sequence.name, sequence.asked, target - sequence.asked)
                break
            except OutOfBlocks:
                last = next(reversed(self.running))
                self._preempt(last, step)
                if last == admission:
                    return
        self.totals["reserved"] += sequence.reserved(step, self.pool.unit)
        sequence.capacity = max(target, sequence.capacity + self._newly_taken())
        sequence.asked, sequence.since = target, step
        self._schedule(admission, sequence)

    def _preempt(self, admission: int, step: int) -> None:
        """Release a sequence and let it wait in front; one that is alone can never go on and is refused."""
        alone = len(self.running) == 1
        sequence = self._release(admission, step)
        self.blocked = None
        if alone:
            self.totals["refused"] += 1
            return
        computed = sequence.held(step) - 1
        self.waiting.appendleft(_Waiting(sequence.index, computed))
        self.totals["preemptions"] += 1
        self.totals["recomputed"] += computed

    def _release(self, admission: int, step: int) -> _Running:
        sequence = self.running.pop(admission)
        self.pool.release(sequence.name)
        self.free = self.pool.free_slots()
        self.held_at_zero -= sequence.held(0)
        self.totals["reserved"] += sequence.reserved(step, self.pool.unit)
        return sequence

    def _newly_taken(self) -> int:
        """Slots that the last call to the pool has taken."""
        before, self.free = self.free, self.pool.free_slots()
        return before - self.free

    def _count(self, step: int, following: int) -> None:
        """Add up the steps from `step` to before `following`, in which the same sequences run with the same slots."""
        running, steps = len(self.running), following - step
        if not running:
            return
        held = self.held_at_zero * steps + running * (step + following - 1) * steps // 2
        fragmented = self.free if self.blocked is not None and self.free >= self.blocked else 0
        for name, amount in (
            ("steps", steps),
            ("held", held),
            ("taken", (self.pool.slots - self.free) * steps),
            ("fragmented", fragmented * steps),
            ("running", running * steps),
        ):
            self.totals[name] += amount
