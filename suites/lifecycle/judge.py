"""What must hold after every operation. Each function states one property and raises `Violation` where it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvbench.checks import Violation
from kvbench.interface import HOLE, Copy, PoolSpec, Tier
from kvbench.suites.lifecycle.client import Answer, View
from kvbench.suites.lifecycle.model import Live, Model
from kvbench.suites.lifecycle.operations import (
    Begin,
    Draft,
    EndStep,
    Extend,
    Fork,
    Misuse,
    Operation,
    Resume,
    SwapIn,
    SwapOut,
)
from kvbench.suites.lifecycle.store import Wrong

PATIENCE = 2
"""Steps for which released blocks may stay out of `free_blocks`: a manager may free late. Only steps in which something
was begun or extended count, as a late free may wait for such a call."""


class Misbehaviour(Violation):
    """A violation that knows the blocks where it shows."""

    def __init__(self, message: str, blocks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.blocks = tuple(blocks)


@dataclass
class Ledger:
    """What the properties over time remember.

    released: blocks that left tables in the open step and the `PATIENCE` steps before it, newest last.
    swapped: host blocks of each sequence that is swapped out. host_released: of those that came back or were freed.
    asked: whether something was begun or extended in the open step.
    stats: the counters as they were last seen.
    """

    released: list[int] = field(default_factory=lambda: [0])
    swapped: dict[str, int] = field(default_factory=dict)
    host_released: list[int] = field(default_factory=lambda: [0])
    asked: bool = False
    stats: Mapping[str, int] = field(default_factory=dict)

    def turn(self) -> None:
        """A step has ended."""
        if self.asked:
            self.released = [*self.released[-PATIENCE:], 0]
        # The copies that kept host blocks busy are done.
        self.host_released = [self.host_released[-1], 0]
        self.asked = False

    def note(self, model: Model, before: View, after: View) -> None:
        """Count the blocks that are in no table any more."""
        self.released[-1] += len(in_use(before) - in_use(after))
        if model.spec.host_blocks:
            now = {seq.name: most_host_blocks(model, seq) for seq in model.live.values() if seq.state == "swapped"}
            self.host_released[-1] += sum(blocks for name, blocks in self.swapped.items() if name not in now)
            self.swapped = now


def in_use(view: View) -> set[int]:
    """Blocks that stand in a table."""
    blocks = {block for tables in view.tables.values() for table in tables for block in table}
    blocks.discard(HOLE)
    return blocks


# --------------------------------------------------------------------------------------------------------------------
# Tables
# --------------------------------------------------------------------------------------------------------------------


def tables_are_sound(model: Model, view: View) -> None:
    """Tables reach over their sequences, name blocks of the pool, each once, and have holes behind windows only."""
    for name, tables in view.tables.items():
        for group, table in enumerate(tables):
            _table_is_sound(model, model.live[name], group, table)


def _table_is_sound(model: Model, seq: Live, group: int, table: list[int]) -> None:
    needed = model.blocks_for(seq.length)
    if len(table) < needed:
        size = model.spec.block_size
        raise Misbehaviour(
            f"{seq.name} has {seq.length} tokens and a table of {len(table)} blocks of {size}, {needed} are needed",
            table,
        )
    held = [block for block in table if block != HOLE]
    if outside := [block for block in held if not 0 <= block < model.spec.num_blocks]:
        raise Misbehaviour(f"the table of {seq.name} names block {outside[0]}, the pool has {model.spec.num_blocks}")
    if len(set(held)) < len(held):
        twice = next(block for block in held if held.count(block) > 1)
        raise Misbehaviour(f"block {twice} stands twice in the table of {seq.name}: {table}", [twice])
    if HOLE in table:
        seen = model.first_visible(group, seq.computed) // model.spec.block_size
        if HOLE in table[seen:needed]:
            place = table.index(HOLE, seen)
            raise Misbehaviour(
                f"{seq.name} has a hole at logical block {place}, and its next query, at position {seq.computed}, "
                f"sees {_sight(model.spec, group)}"
            )


def _sight(spec: PoolSpec, group: int) -> str:
    window = spec.groups[group].window
    return "everything before it" if window is None else f"the last {window} keys"


def sharing_is_equal(model: Model, view: View) -> None:
    """A block in several tables holds the same rows for all of them."""
    if len(view.tables) < 2 and len(model.spec.groups) < 2:
        return
    places: dict[int, list[tuple[Live, int, int]]] = {}
    for name, tables in view.tables.items():
        seq = model.live[name]
        for group, table in enumerate(tables):
            for index in range(min(len(table), model.blocks_for(seq.length))):
                places.setdefault(table[index], []).append((seq, group, index))
    places.pop(HOLE, None)
    for block, holders in places.items():
        for other in holders[1:]:
            _same_rows(model, block, holders[0], other)


def _same_rows(model: Model, block: int, one: tuple[Live, int, int], other: tuple[Live, int, int]) -> None:
    (a, group_a, index_a), (b, group_b, index_b) = one, other
    size = model.spec.block_size
    rows = min(a.length - index_a * size, b.length - index_b * size, size)
    if rows <= 0:
        return
    last_a, last_b = index_a * size + rows - 1, index_b * size + rows - 1
    # Rows are chained: if the last common ones are equal, all before them are.
    if group_a == group_b and index_a == index_b and a.rows[last_a] == b.rows[last_b]:
        return
    offset = next((i for i in range(rows) if a.rows[index_a * size + i] != b.rows[index_b * size + i]), 0)
    raise Misbehaviour(
        f"block {block} is in the tables of {a.name} and {b.name}, and its row {offset} belongs to position "
        f"{index_a * size + offset} of {a.name}{_of_group(model, group_a)} and to position "
        f"{index_b * size + offset} of {b.name}{_of_group(model, group_b)}, whose content differs",
        [block],
    )


def _of_group(model: Model, group: int) -> str:
    return f" (group {group})" if len(model.spec.groups) > 1 else ""


def windows_are_released(model: Model, view: View) -> None:
    """Blocks behind a window are given back, at the latest when the sequence grows next."""
    size = model.spec.block_size
    for name, tables in view.tables.items():
        seq = model.live[name]
        for group, table in enumerate(tables):
            window = model.spec.groups[group].window
            if window is None:
                continue
            held = sum(block != HOLE for block in table)
            # One key more than the window is granted: some keep the key that the query itself replaces.
            most = model.blocks_for(seq.length) - max(0, seq.grown_at - window) // size
            if held > most:
                raise Misbehaviour(
                    f"{name} holds {held} blocks in a group with a window of {window}; it had {seq.grown_at} tokens "
                    f"when it last grew and has {seq.length} now, for which {most} blocks of {size} are enough",
                    table,
                )


# --------------------------------------------------------------------------------------------------------------------
# Bookkeeping
# --------------------------------------------------------------------------------------------------------------------


def nothing_is_free_and_used(view: View) -> None:
    """Free blocks and blocks in tables are no more than there are."""
    used = len(in_use(view))
    if not 0 <= view.free <= view.usable:
        raise Misbehaviour(f"free_blocks is {view.free}, and usable_blocks {view.usable}")
    if view.free + used > view.usable:
        raise Misbehaviour(
            f"free_blocks is {view.free} and {used} blocks stand in tables, but only {view.usable} are usable: "
            "a block that is in use counts as free",
            sorted(in_use(view)),
        )


def nothing_is_lost(view: View, ledger: Ledger) -> None:
    """Usable blocks are free or in a table, or have been released only just now."""
    missing = view.usable - view.free - len(in_use(view))
    if missing > sum(ledger.released):
        raise Misbehaviour(
            f"{missing} of {view.usable} usable blocks are lost: free_blocks is {view.free} and "
            f"{len(in_use(view))} stand in tables"
        )


def pool_keeps_its_size(before: View, after: View) -> None:
    """The number of usable blocks never changes."""
    if before.usable != after.usable:
        raise Misbehaviour(f"usable_blocks was {before.usable} and is {after.usable}")


def counters_make_sense(ledger: Ledger, stats: Mapping[str, int]) -> None:
    """Counters never fall, and there are no more hits than queries."""
    for name, value in stats.items():
        if value < ledger.stats.get(name, 0):
            raise Misbehaviour(f"the counter {name} fell from {ledger.stats[name]} to {value}")
    if stats.get("prefix_hits", 0) > stats.get("prefix_queries", stats.get("prefix_hits", 0)):
        raise Misbehaviour(f"stats count {stats['prefix_hits']} hits in {stats['prefix_queries']} queried tokens")
    ledger.stats = stats


# --------------------------------------------------------------------------------------------------------------------
# Refusals
# --------------------------------------------------------------------------------------------------------------------


def refusal_changes_nothing(operation: Operation, before: View, after: View) -> None:
    """An operation that was refused leaves tables and free blocks as they were."""
    if after.free < before.free:
        raise Misbehaviour(
            f"{operation.told()} was refused and {before.free - after.free} blocks are lost: free_blocks was "
            f"{before.free} and is {after.free}"
        )
    for name, tables in before.tables.items():
        if after.tables[name] != tables:
            raise Misbehaviour(
                f"{operation.told()} was refused and the table of {name} changed from {_all(tables)} to "
                f"{_all(after.tables[name])}"
            )


def misuse_changes_nothing(operation: Misuse, said: str, before: View, after: View) -> None:
    """What no caller should do is refused or ignored."""
    # More may be free: a late free may have waited for a call. Too much is told by `nothing_is_free_and_used`.
    if after.free < before.free:
        raise Misbehaviour(
            f"{operation.told()} was {said.partition(':')[0]}, and free_blocks went from {before.free} to {after.free}"
        )
    for name, tables in before.tables.items():
        if after.tables[name] != tables:
            raise Misbehaviour(
                f"{operation.told()} was {said.partition(':')[0]}, and the table of {name} changed from "
                f"{_all(tables)} to {_all(after.tables[name])}"
            )


def _all(tables: Sequence[Sequence[int]]) -> str:
    return " and ".join(map(str, tables))


def room_is_granted(operation: Operation, model: Model, before: View, partial_blocks: bool) -> None:
    """An operation that was refused needed more blocks than were free."""
    most = most_needed(operation, model, before, partial_blocks)
    if most is not None and most <= before.free:
        raise Misbehaviour(
            f"{operation.told()} was refused as out of blocks: it needs {most} at most, free_blocks was {before.free}"
        )


def most_needed(operation: Operation, model: Model, view: View, partial_blocks: bool) -> int | None:
    """Device blocks that an operation needs at most, without any help from a cache. None: not known."""
    groups = len(model.spec.groups)
    match operation:
        case Begin(tokens=tokens):
            return groups * (model.blocks_for(len(tokens)) + partial_blocks)
        case Resume(seq=name) | SwapIn(seq=name):
            return groups * (model.blocks_for(model.live[name].length) + partial_blocks)
        case Extend(seq=name, tokens=tokens) | Draft(seq=name, tokens=tokens):
            seq = model.live[name]
            grown = model.blocks_for(seq.length + len(tokens)) - model.blocks_for(seq.length)
            return groups * (grown + (partial_blocks or _tail_is_shared(model, seq, view)))
        case Fork(parent=name):
            return groups * (model.live[name].length % model.spec.block_size > 0)
        case _:
            return None


def _tail_is_shared(model: Model, seq: Live, view: View) -> bool:
    """Whether the partial block that the next token goes into stands in another table as well."""
    if seq.length % model.spec.block_size == 0:
        return False
    tails = {table[model.blocks_for(seq.length) - 1] for table in view.tables[seq.name]}
    others = {block for name, tables in view.tables.items() if name != seq.name for table in tables for block in table}
    return bool(tails & others)


def host_room_is_granted(model: Model, seq: Live, ledger: Ledger) -> None:
    """A swap that was refused needed more host blocks than can have been free."""
    free = model.spec.host_blocks - sum(ledger.swapped.values()) - sum(ledger.host_released)
    most = most_host_blocks(model, seq)
    if most <= free:
        raise Misbehaviour(
            f"swapping {seq.name} out was refused: it needs {most} host blocks at most and {free} of "
            f"{model.spec.host_blocks} are free"
        )


def most_host_blocks(model: Model, seq: Live) -> int:
    """Host blocks that `seq` takes at most."""
    return len(model.spec.groups) * model.blocks_for(seq.length)


# --------------------------------------------------------------------------------------------------------------------
# Hits and reads
# --------------------------------------------------------------------------------------------------------------------


def hits_are_earned(model: Model, seq: Live, cached: int) -> None:
    """Cached tokens leave one to compute, and were committed under this namespace, or are written in this very step."""
    if not 0 <= cached <= max(0, seq.length - 1):
        raise Misbehaviour(
            f"{cached} of the {seq.length} tokens of {seq.name} are said to be cached; at least one must be left to "
            "compute"
        )
    if cached == 0:
        return
    row = int(seq.rows[cached - 1])
    if row in model.accepted or row in model.pending_this_step(seq.name):
        return
    length = next(n for n in range(1, cached + 1) if int(seq.rows[n - 1]) not in model.accepted)
    raise Misbehaviour(
        f"{seq.name} was told that its first {cached} tokens are cached; no sequence has committed its first {length}"
        f"{'' if seq.namespace is None else f' in namespace {seq.namespace!r}'}{_why(model, seq, length)}"
    )


def _why(model: Model, seq: Live, length: int) -> str:
    """Where such tokens were seen: in another namespace, before a reset, or uncommitted."""
    if int(seq.rows[length - 1]) in {int(row) for _, rows in model.history for row in rows[length - 1 : length]}:
        return ", they were given up before they were committed"
    for namespace in model.namespaces:
        if namespace != seq.namespace and int(model.chain(namespace, seq.tokens[:length])[-1]) in model.accepted:
            return f", only in {'no namespace' if namespace is None else f'namespace {namespace!r}'}"
    for epoch in range(model.epoch):
        if int(model.chain(seq.namespace, seq.tokens[:length], epoch)[-1]) in model.accepted:
            return " since the prefix cache was reset"
    return ""


def copies_are_sound(spec: PoolSpec, copies: Sequence[Copy]) -> None:
    """Copies name blocks of the tiers that they are between."""
    for source, target, tier in copies:
        sizes = {
            Tier.WITHIN: (spec.num_blocks, spec.num_blocks),
            Tier.OUT: (spec.num_blocks, spec.host_blocks),
            Tier.IN: (spec.host_blocks, spec.num_blocks),
        }[Tier(tier)]
        if not (0 <= source < sizes[0] and 0 <= target < sizes[1]):
            raise Misbehaviour(f"a copy {Tier(tier).value} from block {source} to {target} leaves pools of {sizes}")


def reads_are_right(model: Model, wrong: Sequence[Wrong]) -> None:
    """Every row that a sequence reads is the one it wrote, inherited or hit."""
    if not wrong:
        return
    first = wrong[0]
    seq = model.live[first.seq]
    hit = ", which was said to be cached" if first.position < seq.cached else ""
    offset = first.position % model.spec.block_size
    place = f"position {first.position}{_of_group(model, first.group)}{hit}"
    raise Misbehaviour(
        f"{first.seq} reads its {place}, in block {first.block} at offset {offset}, and finds {first.words}",
        [first.block],
    )


# --------------------------------------------------------------------------------------------------------------------
# All together
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """What may be asked of the manager. paged: blocks are allocated as they are needed."""

    paged: bool
    partial_blocks: bool


def after_operation(
    operation: Operation, answer: Answer, model: Model, before: View, after: View, ledger: Ledger, terms: Terms
) -> None:
    """Everything that must hold after `operation`; `before` and `after` are what the manager showed."""
    if isinstance(operation, Misuse):
        misuse_changes_nothing(operation, answer.said, before, after)
    if answer.refused is not None:
        refusal_changes_nothing(operation, before, after)
        if terms.paged:
            room_is_granted(operation, model, before, terms.partial_blocks)
        if isinstance(operation, SwapOut):
            host_room_is_granted(model, model.live[operation.seq], ledger)
    if isinstance(operation, (Begin, Resume)) and answer.cached is not None:
        hits_are_earned(model, model.live[operation.seq], answer.cached)
    ledger.asked = ledger.asked or isinstance(operation, (Begin, Extend, Draft))
    ledger.note(model, before, after)
    pool_keeps_its_size(before, after)
    tables_are_sound(model, after)
    sharing_is_equal(model, after)
    nothing_is_free_and_used(after)
    if isinstance(operation, EndStep):
        windows_are_released(model, after)
        if terms.paged:
            nothing_is_lost(after, ledger)
        ledger.turn()


__all__ = [
    "Ledger",
    "Misbehaviour",
    "Terms",
    "after_operation",
    "copies_are_sound",
    "counters_make_sense",
    "in_use",
    "most_needed",
    "nothing_is_lost",
    "tables_are_sound",
]
