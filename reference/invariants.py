"""What must hold in a `ReferenceManager` between any two calls. Scans everything: for tests only."""

from __future__ import annotations

from collections import Counter

from kvbench.interface import HOLE
from kvbench.reference.blocks import BlockPool
from kvbench.reference.manager import ReferenceManager
from kvbench.reference.prefix import Prefix
from kvbench.reference.sequence import Place, SequenceState


def check_invariants(manager: ReferenceManager) -> None:
    """Raises `AssertionError` that names what does not hold."""
    states = manager.sequences.values()
    _check_pool("device", manager.pool, [state for state in states if state.place is not Place.SWAPPED])
    _check_pool("host", manager.host, [state for state in states if state.place is Place.SWAPPED])
    for name, state in manager.sequences.items():
        _check_sequence(manager, name, state)
    _check_prefixes(manager)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _check_pool(tier: str, pool: BlockPool, states: list[SequenceState]) -> None:
    """References are the tables that hold a block; unused, idle and referenced blocks make up the pool."""
    held = Counter(block for state in states for block in state.blocks())
    counted = {block: references for block, references in enumerate(pool.references) if references}
    _require(counted == dict(held), f"{tier} references {counted} differ from the tables' {dict(held)}")
    parts = sorted([*pool.unused, *pool.idle, *held])
    _require(parts == list(range(len(pool.references))), f"{tier} blocks are lost or held twice: {parts}")


def _check_sequence(manager: ReferenceManager, name: str, state: SequenceState) -> None:
    """Tables have a block for every visible position, no block twice; what is published is what the cache has."""
    size, length = manager.spec.block_size, len(state.tokens)
    blocks = state.blocks()
    _require(len(blocks) == len(set(blocks)), f"{name} holds a block twice: {state.tables}")
    _require(state.committed <= length, f"{name} has {state.committed} of {length} tokens committed")
    _require(state.published * size <= state.committed, f"{name} published {state.published} blocks too early")
    for index, prefix in enumerate(state.chain[1:]):
        _require(prefix.content == tuple(state.tokens[index * size : (index + 1) * size]), f"{name} is misread")
        _require(prefix.parent is state.chain[index], f"{name} has a broken chain")
    if state.place is Place.PREEMPTED:
        _require(not blocks and not state.committed, f"{name} is preempted and holds {blocks}")
        return
    for group, table in enumerate(state.tables):
        first = manager.first_visible(group, state.committed)
        _require(len(table) == manager.blocks_for(length), f"{name} has {len(table)} blocks for {length} tokens")
        _require(all(block == HOLE for block in table[:first]), f"{name} holds blocks behind its window: {table}")
        _require(HOLE not in table[first:], f"{name} misses block {first} or a later one: {table}")
        if state.chain and state.place is Place.RUNNING:
            found = [prefix.blocks.get(group) for prefix in state.chain[first + 1 : state.published + 1]]
            _require(found == table[first : state.published], f"{name} published {table}, the cache has {found}")


def _check_prefixes(manager: ReferenceManager) -> None:
    """Published blocks and prefixes point at each other, idle blocks are published, and uses add up."""
    prefixes = manager.prefixes
    _require(set(manager.pool.idle) <= set(prefixes.published), "an idle block cannot be hit")
    nodes = [prefix for bucket in prefixes.buckets.values() for prefix in bucket]
    places = {block: (prefix, group) for prefix in nodes for group, block in prefix.blocks.items()}
    _require(places == prefixes.places, "the map of published blocks and the prefixes disagree")
    uses: Counter[Prefix] = Counter(prefix for state in manager.sequences.values() for prefix in state.chain)
    for prefix in nodes:
        uses[prefix] += len(prefix.blocks)
        if prefix.parent is not None:
            uses[prefix.parent] += 1
    _require(all(prefix.uses == uses[prefix] for prefix in nodes) and len(uses) == len(nodes), "uses do not add up")
    for prefix in nodes:
        _check_parent_cached(manager, prefix)


def _check_parent_cached(manager: ReferenceManager, prefix: Prefix) -> None:
    """In a group without a window a cached block's parent is cached too, so that the block can be hit."""
    parent = prefix.parent
    if parent is None or parent.parent is None:
        return
    for group, block in prefix.blocks.items():
        if manager.spec.groups[group].window is None:
            _require(group in parent.blocks, f"block {block} is cached and what comes before it is not")
