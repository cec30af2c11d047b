"""Pools whose every slot holds a row of the content canary, and reading them back through attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.canary import (
    RowBook,
    distinct_codes,
    key_codes,
    misreads,
    probe_positions,
    probe_queries,
    unwritten_identities,
    value_digits,
)
from kvbench.interface import CacheSpec
from kvbench.subject import Subject
from kvbench.suites.correctness.cases import Row, Scene, blocks_for, tables_of
from kvbench.suites.correctness.world import Memory, cache_spec, owners, row_name, slots_of
from kvbench.timeline import Timeline, TimelineStep

SCRATCH_TURNS = 4
"""About how many calls read a whole pool; fewer need more scratch blocks, which lie in the pool too."""


@dataclass(frozen=True)
class Misplaced:
    """A slot of the pool that does not hold what it should, in words."""

    slot: int
    layer: int
    words: str


@dataclass
class Pool:
    """A cache full of known rows.

    tables: the blocks of the scene's rows. scratch: blocks in the middle of the pool that reading uses up.
    holds: the identity of each slot's row, [num_slots] a layer.
    """

    scene: Scene
    memory: Memory
    tables: list[list[int]]
    scratch: list[int]
    holds: list[npt.NDArray[np.uint64]]
    book: RowBook
    hidden: tuple[int, ...] = ()
    dead: dict[int, set[int]] = field(default_factory=dict)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.memory.spec.block_size

    def slot_name(self, slot: int) -> str:
        """A slot in words, with the row whose it is."""
        block, offset = divmod(slot, self.block_size)
        for i, table in enumerate(self.tables):
            if block in table:
                position = table.index(block) * self.block_size + offset
                return f"slot {offset} of block {block} (position {position} of {row_name(i)})"
        return f"slot {offset} of block {block} (nobody's)"

    def rows_of(self, identities: Sequence[int], layer: int) -> tuple[Any, Any]:
        """K and V for identities, as tensors."""
        spec = self.memory.spec
        return (
            self.memory.tensor(key_codes(identities, spec.num_kv_heads, spec.head_dim, layer)),
            self.memory.tensor(value_digits(identities, spec.num_kv_heads, spec.value_dim, layer)),
        )

    def record(self, slots: Iterable[int], identities: Iterable[int], layer: int) -> None:
        """From now on `slots` are expected to hold `identities`."""
        for slot, identity in zip(slots, identities, strict=True):
            self.holds[layer][slot] = identity

    def wrote(self, lengths: Sequence[int], layer: int) -> None:
        """`forward` has written the tables' rows up to these lengths (0: not at all)."""
        dead = self.dead.setdefault(layer, set())
        for table, length in zip(self.tables, lengths, strict=True):
            end = blocks_for(length, self.block_size) * self.block_size
            dead -= set(slots_of(table, 0, length, self.block_size))
            dead |= set(slots_of(table, length, end, self.block_size))

    def misplaced(self) -> list[Misplaced]:
        """Read every slot that is not dead, outside the scratch and hidden blocks, in all layers."""
        return [wrong for layer in range(self.memory.spec.num_layers) for wrong in self._misplaced(layer)]

    def _misplaced(self, layer: int) -> list[Misplaced]:
        spec, bs = self.memory.spec, self.block_size
        kept = [block for block in range(self.memory.num_blocks) if block not in (*self.scratch, *self.hidden)]
        slots = np.array([block * bs + offset for block in kept for offset in range(bs)])
        identities = self.holds[layer][slots]
        ratio = spec.num_q_heads // spec.num_kv_heads
        live = np.flatnonzero(~np.isin(slots, list(self.dead.get(layer, ()))))
        tokens = min(len(self.scratch) * bs, blocks_for(len(live), ratio))
        own = unwritten_identities(range(tokens), generation=9)
        k, v = self.rows_of(own, layer)
        competing = np.concatenate([identities, np.array(own, dtype=np.uint64)])
        row, table = Row(len(slots), tokens), [*kept, *self.scratch]
        found: list[Misplaced] = []
        for turn in range(blocks_for(len(live), ratio * tokens)):
            positions = live[
                probe_positions([0] * tokens, [len(live)] * tokens, spec.num_q_heads, spec.num_kv_heads, turn)
            ]
            expected = identities[positions]
            q = probe_queries(expected, spec.num_kv_heads, spec.head_dim, len(competing), layer)
            batch = self.memory.batch([row], [table], self.memory.tensor(q), k, v, layer=layer)
            out = self.memory.kernel.forward(self.memory.cache, batch).out
            alone = distinct_codes(expected, competing, spec.head_dim)
            found += [
                Misplaced(int(slots[positions[miss.token, miss.head]]), layer, miss.words)
                for miss in misreads(_array(out), expected, self.book, layer)
                if alone[miss.token, miss.head]
            ]
        return found

    def timeline(self, label: str, note: str, bad_slots: Sequence[int], wrote: Sequence[int] = ()) -> Timeline:
        """Who owned what when something went wrong."""
        owned = owners(dict(enumerate(self.tables)))
        bad = tuple(sorted({slot // self.block_size for slot in bad_slots}))
        return Timeline(
            self.memory.num_blocks,
            (TimelineStep("pool filled", owned), TimelineStep(label, owned, tuple(wrote), bad=bad, note=note)),
        )


def _array(out: Any) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = out.detach().float().cpu().numpy()
    return array


def fill_pool(subject: Subject, scene: Scene) -> Pool:
    """A pool that is full of known rows: contexts and new tokens of the scene's rows are not told apart here."""
    tables, total = tables_of(scene)
    spec = cache_spec(subject, scene.shape, scene.layers)
    tables, scratch, num_blocks = _with_scratch(tables, total, spec)
    memory = Memory.create(subject, spec, num_blocks, scene.fill)
    pool = Pool(scene, memory, tables, scratch, [], RowBook(spec.num_kv_heads, spec.value_dim, spec.num_layers))
    for layer in range(scene.layers):
        slots = range(num_blocks * spec.block_size)
        identities = unwritten_identities(slots, generation=scene.seed % 8)
        pool.holds.append(np.array(identities, dtype=np.uint64))
        memory.store_everywhere(*pool.rows_of(identities, layer), layer)
        if layer == 0:
            pool.book.add(identities, (f"what was in {pool.slot_name(slot)} before" for slot in slots))
    return pool


def _with_scratch(tables: list[list[int]], total: int, spec: CacheSpec) -> tuple[list[list[int]], list[int], int]:
    """Put scratch blocks between the two halves of the pool, so that its first and last blocks belong to rows."""
    ratio = spec.num_q_heads // spec.num_kv_heads
    scratch = blocks_for(total, ratio * SCRATCH_TURNS)
    middle = (total + 1) // 2
    moved = [[block if block < middle else block + scratch for block in table] for table in tables]
    return moved, list(range(middle, middle + scratch)), total + scratch


def first_words(pool: Pool, wrong: Sequence[Misplaced]) -> str:
    """The first slot that is wrong, and how many there are."""
    first = wrong[0]
    layer = f" in layer {first.layer}" if pool.memory.spec.num_layers > 1 else ""
    more = f" ({len(wrong)} reads are wrong)" if len(wrong) > 1 else ""
    return f"{pool.slot_name(first.slot)}{layer} has lost its row: looking for it finds {first.words}{more}"


__all__ = ["Misplaced", "Pool", "fill_pool", "first_words"]
