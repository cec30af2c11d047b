"""One script against one subject: client, store and judge joined, with the story and the timeline of what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvbench.checks import NotApplicable, Violation
from kvbench.errors import CacheError, OutOfBlocks
from kvbench.interface import HOLE, Copy, PoolSpec
from kvbench.subject import EngineError, Subject
from kvbench.suites.lifecycle import judge
from kvbench.suites.lifecycle.client import Answer, Client, View
from kvbench.suites.lifecycle.kernel_store import KernelStore
from kvbench.suites.lifecycle.model import Model
from kvbench.suites.lifecycle.operations import CacheShape, EndStep, Free, Operation, Script
from kvbench.suites.lifecycle.store import IntegerStore, Store
from kvbench.timeline import Timeline, TimelineStep


@dataclass(frozen=True)
class Event:
    """An operation that was carried out, how it ended, and what the manager showed then."""

    operation: Operation
    answer: Answer
    view: View


@dataclass
class World:
    """A manager under test with all that is needed to ask and to judge it."""

    client: Client
    model: Model
    terms: judge.Terms
    view: View
    ledger: judge.Ledger = field(default_factory=judge.Ledger)
    events: list[Event] = field(default_factory=list)

    def perform(self, operation: Operation) -> Answer | None:
        """Carry out an operation and judge what it did; None if it does not apply. Raises `Violation`."""
        return self._told(operation, lambda: self._perform(operation))

    def finish(self) -> None:
        """Close the step, free every sequence, and see that the whole pool can be had again. Raises `Violation`."""
        self.perform(EndStep())
        for name in list(self.model.live):
            self.perform(Free(name))
        self._told(EndStep(), self._pool_is_whole)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What was carried out so far."""
        return tuple(event.operation for event in self.events)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _perform(self, operation: Operation) -> Answer | None:
        if not self.client.applies(operation):
            return None
        before = self.view
        answer = self.client.apply(operation, self._inspect)
        # Noted at once, so that what goes wrong below is told with this operation as the last.
        self.events.append(Event(operation, answer, before))
        if answer.wrong:
            judge.reads_are_right(self.model, answer.wrong)
        self.view = self.client.look()
        self.events[-1] = Event(operation, answer, self.view)
        judge.after_operation(operation, answer, self.model, before, self.view, self.ledger, self.terms)
        if isinstance(operation, EndStep):
            judge.counters_make_sense(self.ledger, self.client.manager.stats())
        return answer

    def _inspect(self, view: View, copies: Sequence[Copy]) -> None:
        judge.tables_are_sound(self.model, view)
        judge.copies_are_sound(self.model.spec, copies)

    def _pool_is_whole(self) -> None:
        """With nothing live every usable block is free, or at the least can be had by the next sequence."""
        view = self.client.look()
        if view.free == view.usable:
            return
        # A manager that frees late may show it late; it must still hand everything out.
        whole = view.usable // len(self.model.spec.groups) * self.model.spec.block_size
        if not self.terms.paged or whole > self.model.spec.max_length:
            whole = 0
        try:
            if whole:
                self.client.manager.begin("the whole pool", _fresh_tokens(whole))
                self.client.manager.free("the whole pool")
        except OutOfBlocks:
            whole = 0
        if not whole:
            raise judge.Misbehaviour(
                f"every sequence was freed and {view.usable - view.free} of {view.usable} blocks are not free again"
            )

    def _told(self, operation: Operation, call: Callable[[], Answer | None]) -> Answer | None:
        """Run `call`; what goes wrong in it is raised with the story up to `operation`."""
        count = len(self.events)
        try:
            return call()
        except (Violation, EngineError, CacheError) as error:
            if isinstance(error, CacheError):
                message = f"{operation.told()}: {type(error).__name__}: {error}"
            else:
                message = error.message if isinstance(error, Violation) else str(error)
            if len(self.events) == count and not isinstance(operation, EndStep):
                self.events.append(Event(operation, Answer(), self.view))
            blocks = error.blocks if isinstance(error, judge.Misbehaviour) else ()
            raise Violation(message, story=self.story(message), timeline=self.timeline(message, blocks)) from error

    def story(self, message: str) -> list[str]:
        """What happened, one line an operation, and what went wrong."""
        spec = self.model.spec
        caching = "prefix caching" if spec.prefix_caching else "no prefix caching"
        lines = [f"a pool of {spec.num_blocks} blocks of {spec.block_size} tokens, {caching}{_told_groups(spec)}"]
        for event in self.events:
            said = f" -> {event.answer.said}" if event.answer.said else ""
            lines.append(event.operation.told() + said)
        return [*lines, message]

    def timeline(self, message: str, blocks: Sequence[int]) -> Timeline:
        """The pool after each operation."""
        steps = [_drawn(event) for event in self.events]
        if steps:
            steps[-1] = replace(steps[-1], bad=tuple(blocks), note=message)
        return Timeline(self.model.spec.num_blocks, tuple(steps))


def _told_groups(spec: PoolSpec) -> str:
    if all(group.window is None for group in spec.groups) and len(spec.groups) == 1:
        return ""
    told = ["full attention" if group.window is None else f"a window of {group.window}" for group in spec.groups]
    return f", groups: {', '.join(told)}"


def _drawn(event: Event) -> TimelineStep:
    owners: dict[str, tuple[str, ...]] = {}
    for name, tables in event.view.tables.items():
        for block in sorted({block for table in tables for block in table if block != HOLE}):
            owners[str(block)] = (*owners.get(str(block), ()), name)
    said = event.answer.said if not isinstance(event.operation, EndStep) else ""
    return TimelineStep(event.operation.told(), owners, event.answer.wrote, event.answer.read, note=said)


def _fresh_tokens(count: int) -> list[int]:
    """Tokens that no script uses."""
    return [10_000 + place for place in range(count)]


def new_world(subject: Subject, pool: PoolSpec, kernel: CacheShape | None = None) -> World:
    """A fresh manager (and kernel) in front of a client. Raises `NotApplicable` for a pool that is not offered."""
    declared = subject.manager
    if reason := unfit(subject, pool, kernel):
        raise NotApplicable(reason)
    try:
        manager = subject.new_manager(pool)
    except CacheError as error:
        raise NotApplicable(f"the manager refuses this pool: {error}") from error
    model = Model(pool)
    store: Store
    if kernel is None:
        store = IntegerStore(pool, model.tell)
    else:
        store = KernelStore(subject, pool, kernel, manager if subject.own_manager else None)
    client = Client(manager, model, store, declared.operations, declared.namespaces)
    terms = judge.Terms(declared.paged, declared.partial_blocks)
    return World(client, model, terms, client.look())


def unfit(subject: Subject, pool: PoolSpec, kernel: CacheShape | None) -> str | None:
    """Why a pool and cache lie outside what `subject` declares, or None."""
    declared = subject.manager
    if pool.block_size not in declared.block_sizes:
        return f"block size {pool.block_size} is not among {declared.block_sizes}"
    if len(pool.groups) > declared.max_groups:
        return f"{len(pool.groups)} groups are more than {declared.max_groups}"
    if any(group.window is not None for group in pool.groups) and not declared.windows:
        return "windows are not declared"
    if kernel is None:
        return None
    if pool.block_size not in subject.kernel.block_sizes:
        return f"block size {pool.block_size} is not among the kernel's {subject.kernel.block_sizes}"
    if kernel.head_dim not in subject.kernel.head_dims:
        return f"head_dim {kernel.head_dim} is not among {subject.kernel.head_dims}"
    if kernel.num_q_heads // kernel.num_kv_heads not in subject.kernel.gqa_ratios:
        return f"{kernel.num_q_heads} query heads on {kernel.num_kv_heads} are not among {subject.kernel.gqa_ratios}"
    return None


def run(subject: Subject, script: Script) -> World:
    """Replay `script` on `subject`, to the end and to an empty pool. Raises `Violation`, `NotApplicable`."""
    world = new_world(subject, script.pool, script.kernel)
    for operation in script.operations:
        world.perform(operation)
    world.finish()
    return world


def judge_script(subject: Subject, script: Script) -> None:
    """`run` as the judge of a check."""
    run(subject, script)


__all__ = ["Event", "World", "judge_script", "new_world", "run", "unfit"]
