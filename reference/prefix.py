"""The prefix cache: which blocks hold the K/V of which token prefix.

A prefix is a chain of full blocks that starts at a namespace. Its hash covers (hash of the parent, tokens of the
block), so every token is hashed once. Hashes only select a bucket; what is found there is compared by its parent and
its tokens. As the parent was found in the same way, by induction the whole prefix and its namespace are compared, and
a collision costs time but never serves another prefix's block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

Content = tuple[int, ...] | str | None
"""The tokens of one full block or, at the start of a chain, the namespace."""


@dataclass(slots=True, eq=False)
class Prefix:
    """One full block of tokens behind `parent`, and the blocks that hold its K/V, by group.

    uses: sequences whose tokens start so, plus children, plus blocks. At zero the prefix is forgotten.
    """

    parent: Prefix | None
    content: Content
    key: int
    blocks: dict[int, int] = field(default_factory=dict)
    uses: int = 0


class PrefixCache:
    """Finds prefixes, and the prefix of each published block."""

    def __init__(self, hash_function: Callable[[Hashable], int]) -> None:
        self.hash_function = hash_function
        self.buckets: dict[int, list[Prefix]] = {}
        self.places: dict[int, tuple[Prefix, int]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self.places

    @property
    def published(self) -> Collection[int]:
        """Every block that may be hit."""
        return self.places.keys()

    def hold(self, parent: Prefix | None, content: Content) -> Prefix:
        """The prefix `content` behind `parent`, found or made. Each hold is given back through `drop`."""
        key = self.hash_function((None if parent is None else parent.key, content))
        bucket = self.buckets.setdefault(key, [])
        for prefix in bucket:
            if prefix.parent is parent and prefix.content == content:
                prefix.uses += 1
                return prefix
        prefix = Prefix(parent, content, key, uses=1)
        bucket.append(prefix)
        if parent is not None:
            parent.uses += 1
        return prefix

    def drop(self, prefix: Prefix) -> None:
        """One use less; prefixes that nothing uses any more are forgotten, up the chain."""
        node: Prefix | None = prefix
        while node is not None:
            node.uses -= 1
            if node.uses > 0:
                return
            bucket = self.buckets[node.key]
            bucket.remove(node)
            if not bucket:
                del self.buckets[node.key]
            node = node.parent

    def publish(self, prefix: Prefix, group: int, block: int) -> None:
        """From now on `block` is what a hit of `prefix` in `group` finds."""
        prefix.blocks[group] = block
        prefix.uses += 1
        self.places[block] = (prefix, group)

    def forget(self, block: int) -> bool:
        """`block` may not be hit any more. Returns whether it could be."""
        if block not in self.places:
            return False
        prefix, group = self.places.pop(block)
        del prefix.blocks[group]
        self.drop(prefix)
        return True
