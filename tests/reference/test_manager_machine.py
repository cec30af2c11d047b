"""A state machine drives `ReferenceManager` beside a few lists of what every sequence must read.

The pools are integer arrays. A cell holds a code that stands for (group, namespace, every token up to here, and the
epoch in which each was computed), so a wrong block, a missing copy or a stale hit is read as another code.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbench.errors import InvalidRequest, OutOfBlocks
from kvbench.interface import HOLE, GroupSpec, PoolSpec, Tier
from kvbench.reference.invariants import check_invariants
from kvbench.reference.manager import ReferenceManager

MOST_SEQUENCES = 5
NAMESPACES = st.sampled_from([None, None, None, "", "red"])
TOKENS = st.lists(st.integers(0, 1), max_size=9)
FEW_TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=2)
GROUPS = st.sampled_from(
    [(None,), (None,), (3,), (1,), (2,), (None, 3), (None, 4), (2, 5), (None, 1), (None, None)]
).map(lambda windows: tuple(GroupSpec(window) for window in windows))
SPECS = st.builds(
    PoolSpec,
    num_blocks=st.integers(3, 8) | st.integers(8, 24),
    block_size=st.integers(1, 4),
    groups=GROUPS,
    prefix_caching=st.sampled_from([True, True, True, False]),
    host_blocks=st.integers(0, 16),
)


def four_bits(key: object) -> int:
    """A hash under which unlike prefixes fall into one bucket now and then."""
    return hash(key) % 16


def no_bits(key: object) -> int:
    """A hash under which they always do."""
    return 0


@dataclass
class Expected:
    """What one sequence must read: a code for each token whose row was written."""

    namespace: str | None
    tokens: list[int]
    codes: list[int] = field(default_factory=list)
    committed: int = 0
    place: str = "running"
    tainted: bool = False  # computed partly before a reset


def some(place: str) -> Any:
    """A rule's precondition: there is a sequence in this place."""
    return precondition(lambda self: any(expected.place == place for expected in self.held.values()))


def room() -> Any:
    """A rule's precondition: another sequence may be begun."""
    return precondition(lambda self: len(self.held) < MOST_SEQUENCES)


class ManagerMachine(RuleBasedStateMachine):
    """Rules are the manager's calls; `step` carries out what an engine does between them."""

    @initialize(spec=SPECS, hash_function=st.sampled_from([hash, four_bits, no_bits]))
    def start(self, spec: PoolSpec, hash_function: Any) -> None:
        self.spec = spec
        self.manager = ReferenceManager(spec, hash_function)
        self.device = [0] * (spec.num_blocks * spec.block_size)
        self.host = [0] * (spec.host_blocks * spec.block_size)
        self.held: dict[str, Expected] = {}
        self.begun = 0
        self.prompts = [[0] * 9, [0, 1, 1, 0, 1, 1, 0, 0, 1]]
        self.interned: dict[tuple[Any, ...], int] = {}
        self.epoch = 0
        self.cached_prefixes: set[tuple[Any, ...]] = set()
        self.evictions_at_reset = 0

    # -- manager calls -----------------------------------------------------------------------------------------------

    @room()
    @rule(data=st.data(), tokens=TOKENS, namespace=NAMESPACES)
    def begin(self, data: st.DataObject, tokens: list[int], namespace: str | None) -> None:
        known = data.draw(st.sampled_from(self.prompts))  # start as another did, so that there is something to hit
        tokens = known[: data.draw(st.just(len(known)) | st.integers(0, len(known)))] + tokens[:2]
        name = self._fresh_name()
        most = self._blocks_for(len(tokens)) * len(self.spec.groups)
        cached = self._attempt(lambda: self.manager.begin(name, tokens, namespace), most)
        if cached is not None:
            self.held[name] = Expected(namespace, tokens.copy())
            self._admit(name, cached)
            self.prompts.append(tokens)

    @some("running")
    @rule(data=st.data(), tokens=TOKENS | FEW_TOKENS, speculative=st.booleans())
    def extend(self, data: st.DataObject, tokens: list[int], speculative: bool) -> None:
        self._extend(self._pick(data, "running"), tokens, speculative)

    @some("running")
    @rule(data=st.data(), tokens=st.just([]) | FEW_TOKENS)
    def truncate_and_continue(self, data: st.DataObject, tokens: list[int]) -> None:
        name = self._pick(data, "running")
        length = data.draw(st.integers(0, len(self.held[name].tokens)))
        if not all(self._resident(name, group, length) for group in self._groups()):
            with pytest.raises(InvalidRequest):
                self.manager.truncate(name, length)
            return
        self.manager.truncate(name, length)
        expected = self.held[name]
        del expected.tokens[length:], expected.codes[length:]
        expected.committed = min(expected.committed, length)
        self._extend(name, tokens, speculative=False)

    @room()
    @some("running")
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent, child = self._pick(data, "running"), self._fresh_name()
        self.manager.fork(parent, child)
        self.held[child] = copy.deepcopy(self.held[parent])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = self._pick(data)
        self.prompts.append(self.held[name].tokens)
        self.manager.free(name)
        del self.held[name]

    @some("running")
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        name = self._pick(data, "running")
        self.manager.preempt(name)
        expected = self.held[name]
        expected.place, expected.committed, expected.codes, expected.tainted = "preempted", 0, [], False

    @some("preempted")
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        name = self._pick(data, "preempted")
        most = self._blocks_for(len(self.held[name].tokens)) * len(self.spec.groups)
        cached = self._attempt(lambda: self.manager.resume(name), most)
        if cached is not None:
            self.held[name].place = "running"
            self._admit(name, cached)

    @precondition(lambda self: self.spec.host_blocks)
    @some("running")
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        name = self._pick(data, "running")
        before = snapshot(self.manager)
        try:
            self.manager.swap_out(name)
        except OutOfBlocks:
            assert snapshot(self.manager) == before
        else:
            self.held[name].place = "swapped"

    @some("swapped")
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        name = self._pick(data, "swapped")
        need = len(self.manager.sequences[name].blocks())
        if self._attempt(lambda: self.manager.swap_in(name) or 0, need, exact=True) is not None:
            self.held[name].place = "running"

    @precondition(lambda self: self.cached_prefixes and not self._uncommitted_is_shared())
    @rule(really=st.sampled_from([False, False, False, True]))
    def reset(self, really: bool) -> None:
        if not really:
            return
        self.manager.reset()
        self.epoch += 1
        self.cached_prefixes.clear()
        self.evictions_at_reset = self.manager.stats()["evictions"]
        for expected in self.held.values():
            expected.tainted = expected.place != "preempted"

    # -- the rest of an engine's step --------------------------------------------------------------------------------

    @some("running")
    @rule()
    def whole_step(self) -> None:
        """Everything that waits is computed and accepted."""
        targets = {name: len(self.held[name].tokens) for name in self._named("running")}
        self._run(targets, targets)

    @some("running")
    @rule(data=st.data())
    def partial_step(self, data: st.DataObject) -> None:
        """Some prompts are computed in chunks, some drafts are not accepted."""
        targets, accepted = {}, {}
        for name in self._named("running"):
            expected = self.held[name]
            targets[name] = data.draw(st.integers(expected.committed, len(expected.tokens)))
            accepted[name] = data.draw(st.integers(expected.committed, targets[name]))
        self._run(targets, accepted)

    def _run(self, targets: dict[str, int], accepted: dict[str, int]) -> None:
        """Copies, all writes, all reads, commits."""
        self._copy_blocks()
        for name, target in targets.items():
            self._write(name, target)
        for name, target in targets.items():
            for group in self._groups():
                for query in range(self.held[name].committed, target + 1):
                    self._read(name, group, query, target)
        for name, length in accepted.items():
            self._commit(name, length)

    def _copy_blocks(self) -> None:
        size = self.spec.block_size
        for source, target, tier in self.manager.take_copies():
            origin = self.host if tier is Tier.IN else self.device
            destination = self.host if tier is Tier.OUT else self.device
            destination[target * size : (target + 1) * size] = origin[source * size : (source + 1) * size]

    def _write(self, name: str, target: int) -> None:
        expected = self.held[name]
        del expected.codes[expected.committed :]
        for position in range(expected.committed, target):
            expected.codes.append(self._code(expected, position))
            for group in self._groups():
                slot = self._slot(name, group, position)
                assert slot is not None, f"{name} has no block for position {position} in group {group}"
                self.device[slot] = expected.codes[position] * 2 + group

    def _read(self, name: str, group: int, query: int, length: int) -> None:
        """A query sees `window` keys up to its own; one at `length` stands for the next step's."""
        window = self.spec.groups[group].window
        first = 0 if window is None else max(0, query - window + 1)
        for position in range(first, min(query + 1, length)):
            slot = self._slot(name, group, position)
            assert slot is not None, f"{name} misses position {position} that query {query} sees"
            assert self.device[slot] == self.held[name].codes[position] * 2 + group, (name, group, position)

    def _commit(self, name: str, accepted: int) -> None:
        self.manager.commit(name, accepted)
        expected = self.held[name]
        expected.committed = max(expected.committed, accepted)
        if not expected.tainted:
            for length in range(self.spec.block_size, expected.committed + 1, self.spec.block_size):
                self.cached_prefixes.add((expected.namespace, *expected.tokens[:length]))

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def books_balance(self) -> None:
        check_invariants(self.manager)
        in_tables = {block for table in self._tables() for block in table if block != HOLE}
        assert self.manager.free_blocks == self.manager.usable_blocks - len(in_tables)

    @invariant()
    def windows_hold_no_more_than_they_need(self) -> None:
        size = self.spec.block_size
        for name in self._named("running"):
            for group in self._groups():
                window = self.spec.groups[group].window
                if window is not None:
                    committed, length = self.held[name].committed, len(self.held[name].tokens)
                    first = max(0, committed - window + 1) // size
                    resident = [block for block in self.manager.block_table(name, group) if block != HOLE]
                    assert len(resident) == max(0, self._blocks_for(length) - first)

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for name in list(self.held):
            self.manager.free(name)
        check_invariants(self.manager)
        assert self.manager.free_blocks == self.manager.usable_blocks
        self.manager.reset()
        assert not self.manager.prefixes.buckets and not self.manager.pool.idle

    # -- judging calls -----------------------------------------------------------------------------------------------

    def _extend(self, name: str, tokens: list[int], speculative: bool) -> None:
        length = len(self.held[name].tokens)
        grow = self._blocks_for(length + len(tokens)) - self._blocks_for(length)
        holders = Counter(block for table in self._tables() for block in table)
        partial = bool(tokens) and length % self.spec.block_size != 0
        tails = [self.manager.block_table(name, group)[-1] for group in self._groups()] if partial else []
        need = grow * len(self.spec.groups) + sum(holders[block] > 1 for block in tails)
        if self._attempt(lambda: self.manager.extend(name, tokens, speculative) or 0, need, exact=True) is not None:
            self.held[name].tokens += tokens

    def _attempt(self, call: Any, need: int, exact: bool = False) -> int | None:
        """Make a call that may run out of blocks; judge whether it was right to."""
        free, before = self.manager.free_blocks, snapshot(self.manager)
        try:
            result = call()
        except OutOfBlocks:
            assert need > free, f"refused although {need} blocks are needed and {free} are free"
            assert snapshot(self.manager) == before
            return None
        assert not exact or need <= free
        return int(result)

    def _admit(self, name: str, cached: int) -> None:
        expected, size = self.held[name], self.spec.block_size
        assert cached % size == 0 and cached <= max(0, len(expected.tokens) - 1)
        whole = all(group.window is None for group in self.spec.groups)
        if self.spec.prefix_caching and whole and self.manager.stats()["evictions"] == self.evictions_at_reset:
            limit = max(0, len(expected.tokens) - 1) // size * size
            hits = range(size, limit + 1, size)
            found = [
                length for length in hits if (expected.namespace, *expected.tokens[:length]) in self.cached_prefixes
            ]
            assert cached == max(found, default=0)
        expected.tainted = False
        for position in range(cached):
            expected.codes.append(self._code(expected, position))
        expected.committed = cached

    # -- arithmetic --------------------------------------------------------------------------------------------------

    def _code(self, expected: Expected, position: int) -> int:
        parent = expected.codes[position - 1] if position else expected.namespace
        key = (parent, expected.tokens[position], self.epoch)
        return self.interned.setdefault(key, len(self.interned) + 1)

    def _uncommitted_is_shared(self) -> bool:
        """Forks that have yet to write the same rows: after a reset they would write different K/V there."""
        size = self.spec.block_size
        shared = Counter(block for table in self._tables() for block in table)
        return any(
            shared[block] > 1
            for name in self._named("running")
            for group in self._groups()
            for block in self.manager.block_table(name, group)[self.held[name].committed // size :]
        )

    def _slot(self, name: str, group: int, position: int) -> int | None:
        block = self.manager.block_table(name, group)[position // self.spec.block_size]
        return None if block == HOLE else block * self.spec.block_size + position % self.spec.block_size

    def _resident(self, name: str, group: int, length: int) -> bool:
        window = self.spec.groups[group].window
        table = self.manager.block_table(name, group)[: self._blocks_for(length)]
        first = 0 if window is None else max(0, length - window + 1) // self.spec.block_size
        return HOLE not in table[first:]

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.spec.block_size)

    def _groups(self) -> range:
        return range(len(self.spec.groups))

    def _tables(self) -> list[tuple[int, ...]]:
        return [
            tuple(self.manager.block_table(name, group)) for name in self._named("running") for group in self._groups()
        ]

    def _named(self, place: str | None = None) -> list[str]:
        return [name for name, expected in self.held.items() if place in (None, expected.place)]

    def _pick(self, data: st.DataObject, place: str | None = None) -> str:
        return data.draw(st.sampled_from(self._named(place)))

    def _fresh_name(self) -> str:
        self.begun += 1
        return f"s{self.begun}"


def snapshot(manager: ReferenceManager) -> object:
    """Everything that a refused call must leave as it was."""
    return (
        manager.pool.references.copy(),
        manager.pool.unused.copy(),
        list(manager.pool.idle),
        manager.host.references.copy(),
        manager.host.unused.copy(),
        {block: (prefix.key, group) for block, (prefix, group) in manager.prefixes.places.items()},
        sum(len(bucket) for bucket in manager.prefixes.buckets.values()),
        {
            name: (s.tokens.copy(), copy.deepcopy(s.tables), s.committed, s.place)
            for name, s in manager.sequences.items()
        },
        manager.copies.copy(),
        manager.stats(),
    )


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
