"""Applies one operation at a time to a manager, the model and the store, and remembers what was said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvbench.checks import Violation
from kvbench.errors import CacheError, OutOfBlocks
from kvbench.interface import Copy, ManagerOperation
from kvbench.subject import GuardedManager
from kvbench.suites.lifecycle import misuse
from kvbench.suites.lifecycle.model import Live, Model
from kvbench.suites.lifecycle.operations import (
    Begin,
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
    SwapIn,
    SwapOut,
    Truncate,
)
from kvbench.suites.lifecycle.store import Store, Work, Wrong

OTHER_TOKEN = 3
"""What a caller's list holds once a call is over: a token that prompts here have."""

Tables = Mapping[str, tuple[list[int], ...]]


@dataclass(frozen=True)
class View:
    """What a manager shows after an operation. tables: of each running sequence, by group."""

    tables: Tables
    free: int
    usable: int


@dataclass(frozen=True)
class Answer:
    """How an operation ended.

    refused: the error, if it was refused. cached: what `begin` or `resume` returned. wrong: rows that were misread.
    wrote, read: blocks that a step touched.
    """

    said: str = ""
    refused: CacheError | None = None
    cached: int | None = None
    wrong: tuple[Wrong, ...] = ()
    wrote: tuple[int, ...] = ()
    read: tuple[int, ...] = ()


Inspect = Callable[[View, Sequence[Copy]], None]


class Client:
    """One engine in front of one manager.

    operations, namespaces: what the manager declares. step: number of the open step. open: whether slots were handed
    out or copies are owed since the last step ended.
    """

    def __init__(
        self,
        manager: GuardedManager,
        model: Model,
        store: Store,
        operations: frozenset[ManagerOperation],
        namespaces: bool,
    ) -> None:
        self.manager = manager
        self.model = model
        self.store = store
        self.operations = operations
        self.namespaces = namespaces
        self.step = 1
        self.open = False
        self.relied = False

    def look(self) -> View:
        """What the manager shows now."""
        groups = range(len(self.model.spec.groups))
        tables = {
            seq.name: tuple(self.manager.block_table(seq.name, group) for group in groups)
            for seq in self.model.running()
        }
        return View(tables, self.manager.free_blocks, self.manager.usable_blocks)

    # -- which operations apply --------------------------------------------------------------------------------------

    def applies(self, operation: Operation) -> bool:
        """Whether a caller that keeps to the interface may ask for `operation` now."""
        match operation:
            case EndStep(chunk=chunk):
                return chunk is None or chunk > 0
            case Begin(seq=name, tokens=tokens, namespace=namespace):
                return self._new(name) and self._fits(len(tokens)) and (namespace is None or self.namespaces)
            case Extend(seq=name, tokens=tokens):
                return self._grows(name, len(tokens))
            case Draft(seq=name, tokens=tokens, accepted=accepted):
                declared = "truncate" in self.operations and 0 <= accepted <= len(tokens) > 0
                return declared and self._grows(name, len(tokens))
            case Fork(parent=name, child=child):
                return "fork" in self.operations and self._new(child) and self._settled(name)
            case Free(seq=name):
                return name in self.model.live and self._may_stop(self.open)
            case Reset():
                return "reset" in self.operations and not self.open
            case Misuse():
                return misuse.applies(operation, self.model, self.operations)
            case _:
                return self._moves(operation)

    def _moves(self, operation: Operation) -> bool:
        """Whether an operation that shrinks a sequence or changes its place applies."""
        match operation:
            case Truncate(seq=name, length=length):
                shorter = name in self.model.live and 0 < length < self.model.live[name].length
                windows = any(group.window is not None for group in self.model.spec.groups)
                declared = "truncate_accepted" in self.operations and not windows
                return declared and shorter and not self.open and self._settled(name)
            case Preempt(seq=name):
                seq = self._in(name, "running")
                declared = "preempt" in self.operations and seq is not None
                return declared and seq is not None and self._may_stop(self._scheduled(seq))
            case Resume(seq=name):
                return "preempt" in self.operations and self._in(name, "preempted") is not None
            case SwapOut(seq=name):
                seq = self._in(name, "running")
                return "swap" in self.operations and seq is not None and not self._scheduled(seq)
            case SwapIn(seq=name):
                seq = self._in(name, "swapped")
                return "swap" in self.operations and seq is not None and seq.moved != self.step
            case _:
                return False

    def _in(self, name: str, state: str) -> Live | None:
        seq = self.model.live.get(name)
        return seq if seq is not None and seq.state == state else None

    def _new(self, name: str) -> bool:
        return name not in self.model.live and len(self.model.live) < self.model.spec.max_sequences

    def _fits(self, length: int) -> bool:
        return length <= self.model.spec.max_length

    def _grows(self, name: str, added: int) -> bool:
        """Running, everything but this step's tokens computed, no drafts waiting, not admitted in this very step."""
        seq = self._in(name, "running")
        if seq is None or seq.drafts or (seq.moved == self.step and seq.pending):
            return False
        return seq.fresh == seq.computed and self._fits(seq.length + added)

    def _settled(self, name: str) -> bool:
        seq = self._in(name, "running")
        return seq is not None and seq.pending == 0 and seq.length > 0

    def _scheduled(self, seq: Live) -> bool:
        """Whether `seq` takes part in the open step."""
        return self.open and (seq.moved == self.step or seq.fresh < seq.length)

    def _may_stop(self, inside: bool) -> bool:
        return not inside or "abort" in self.operations

    # -- carrying them out -------------------------------------------------------------------------------------------

    def apply(self, operation: Operation, inspect: Inspect) -> Answer:
        """Carry out an operation that applies. `inspect` sees the tables and copies of a step before memory does."""
        if isinstance(operation, EndStep):
            return self._end_step(operation.chunk, inspect)
        if isinstance(operation, Misuse):
            return Answer(said=misuse.commit(operation, self.manager, self.model))
        try:
            answer = self._manage(operation)
        except OutOfBlocks as error:
            return Answer(said="refused: out of blocks", refused=error)
        except CacheError as error:
            raise Violation(
                f"{operation.told()} is a legal request and was refused: {type(error).__name__}: {error}"
            ) from error
        self.open = self.open or not isinstance(operation, (Free, Preempt, Reset, Truncate))
        return answer

    def _manage(self, operation: Operation) -> Answer:
        live, manager, model = self.model.live, self.manager, self.model
        match operation:
            case Begin(seq=name, tokens=tokens, namespace=namespace):
                with lent(tokens) as given:
                    cached = int(manager.begin(name, given, namespace))
                self._admitted(model.begin(name, tokens, namespace, cached))
                return Answer(said=f"{cached} cached", cached=cached)
            case Resume(seq=name):
                cached = int(manager.resume(name))
                model.resume(live[name], cached)
                self._admitted(live[name])
                return Answer(said=f"{cached} cached", cached=cached)
            case Extend(seq=name, tokens=tokens):
                with lent(tokens) as given:
                    manager.extend(name, given)
                model.extend(live[name], tokens)
            case Draft(seq=name, tokens=tokens, accepted=accepted):
                with lent(tokens) as given:
                    manager.extend(name, given, True)
                model.extend(live[name], tokens, drafts=True, accepted=accepted)
            case Fork(parent=name, child=child):
                manager.fork(name, child)
                model.fork(live[name], child)
                live[child].moved = self.step
            case _:
                self._move(operation)
        return Answer()

    def _move(self, operation: Operation) -> None:
        live, manager, model = self.model.live, self.manager, self.model
        match operation:
            case Truncate(seq=name, length=length):
                manager.truncate(name, length)
                model.truncate(live[name], length)
            case Free(seq=name):
                manager.free(name)
                model.free(live[name])
            case Preempt(seq=name):
                manager.preempt(name)
                model.preempt(live[name])
            case SwapOut(seq=name):
                manager.swap_out(name)
                live[name].state, live[name].moved = "swapped", self.step
            case SwapIn(seq=name):
                manager.swap_in(name)
                live[name].state, live[name].moved = "running", self.step
            case Reset():
                manager.reset()
                model.epoch += 1

    def _admitted(self, seq: Live) -> None:
        seq.moved = self.step
        # What this step's writes bring is already hit: they may not be put off.
        self.relied = self.relied or not model_knows(self.model, seq)

    def _end_step(self, chunk: int | None, inspect: Inspect) -> Answer:
        copies = self.manager.take_copies()
        view = self.look()
        inspect(view, copies)
        self.store.copy(copies)
        works = [self._work(seq, view.tables[seq.name], chunk) for seq in self.model.running()]
        wrong = self.store.carry_out(works, self.step)
        if not wrong:
            for work in works:
                self._commit(self.model.live[work.seq], work)
        self.step += 1
        self.open = self.relied = False
        wrote, read = self._touched(works)
        return Answer(wrong=tuple(wrong), wrote=wrote, read=read, said=_told_work(works))

    def _work(self, seq: Live, tables: tuple[list[int], ...], chunk: int | None) -> Work:
        whole = chunk is None or seq.drafts > 0 or self.relied
        upto = seq.length if whole else min(seq.length, seq.computed + (chunk or 0))
        visible = tuple(self.model.first_visible(group, seq.computed) for group in range(len(tables)))
        return Work(seq.name, seq.rows, seq.computed, upto, visible, tables)

    def _commit(self, seq: Live, work: Work) -> None:
        accepted = work.upto - (seq.drafts - seq.accepted)
        try:
            if work.first < work.upto:
                self.manager.commit(seq.name, accepted)
                self.model.commit(seq, accepted)
            if accepted < work.upto:
                self.manager.truncate(seq.name, accepted)
                self.model.truncate(seq, accepted)
        except CacheError as error:
            raise Violation(
                f"at the end of the step {seq.name} was refused: {type(error).__name__}: {error}"
            ) from error
        seq.drafts = seq.accepted = 0
        seq.fresh = seq.length

    def _touched(self, works: Sequence[Work]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        size = self.model.spec.block_size
        wrote: set[int] = set()
        read: set[int] = set()
        for work in works:
            for table, visible in zip(work.tables, work.visible, strict=True):
                read.update(table[visible // size : self.model.blocks_for(work.upto)])
                if work.first < work.upto:
                    wrote.update(table[work.first // size : self.model.blocks_for(work.upto)])
        return tuple(sorted(wrote)), tuple(sorted(read))


@contextlib.contextmanager
def lent(tokens: Sequence[int]) -> Iterator[list[int]]:
    """`tokens` in a list that its owner uses for something else afterwards."""
    given = list(tokens)
    try:
        yield given
    finally:
        given[:] = [OTHER_TOKEN] * len(given)


def model_knows(model: Model, seq: Live) -> bool:
    """Whether every cached row of `seq` was committed before."""
    return seq.cached <= 0 or int(seq.rows[min(seq.cached, seq.length) - 1]) in model.accepted


def _told_work(works: Sequence[Work]) -> str:
    wrote = [f"{w.seq} {w.first}..{w.upto - 1}" for w in works if w.first < w.upto]
    return f"writes {', '.join(wrote)}" if wrote else "writes nothing"


__all__ = ["Answer", "Client", "View", "model_knows"]
