"""The block allocator: reference counts, a stack of unused blocks, and the idle cached blocks in eviction order."""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """Hands out block ids in [0, num_blocks). Every operation costs the same however large the pool is.

    A block is referenced, or unused, or *idle*: unreferenced, but kept because its content may be hit again. Idle
    blocks are given out only when nothing is unused, the one that was released first going first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.references = [0] * num_blocks
        self.unused = list(range(num_blocks - 1, -1, -1))
        self.idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that `take` can hand out."""
        return len(self.unused) + len(self.idle)

    def take(self) -> int:
        """A block with one reference. The caller has seen to it that `free` is not zero."""
        block = self.unused.pop() if self.unused else self.idle.popitem(last=False)[0]
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a block that is referenced or idle."""
        self.idle.pop(block, None)
        self.references[block] += 1

    def release(self, block: int, keep: bool) -> None:
        """One reference less. A block that nobody references any more becomes idle (`keep`) or unused."""
        self.references[block] -= 1
        if self.references[block] > 0:
            return
        if keep:
            self.idle[block] = None
        else:
            self.unused.append(block)

    def discard(self, block: int) -> None:
        """The content of `block` cannot be hit any more: if it is idle, it becomes unused."""
        if block in self.idle:
            del self.idle[block]
            self.unused.append(block)
