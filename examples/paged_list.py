"""A whole adapter in sixty lines: a paged cache manager with a free list and nothing else.

Try it: kvbench verify ./examples/paged_list.py:Adapter
"""

from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence
from kvbench.interface import Capabilities, ManagerCapabilities


class Manager:
    """Hands out blocks from a list; takes them back when a sequence is freed."""

    def __init__(self, spec):
        self.block_size = spec.block_size
        self.usable_blocks = spec.num_blocks
        self.free_ids = list(range(spec.num_blocks))
        self.tables = {}  # sequence -> block ids
        self.lengths = {}  # sequence -> tokens

    @property
    def free_blocks(self):
        return len(self.free_ids)

    def begin(self, seq, tokens, namespace=None):
        if seq in self.tables:
            raise UnknownSequence(f"sequence {seq!r} is already here")
        self._grow(seq, [], len(tokens))
        return 0  # no token's K/V is cached

    def extend(self, seq, tokens, speculative=False):
        self._grow(seq, self._table(seq), self.lengths[seq] + len(tokens))

    def commit(self, seq, length):
        self._table(seq)
        if not 0 <= length <= self.lengths[seq]:
            raise InvalidRequest(f"cannot commit {length} of the {self.lengths[seq]} tokens of {seq!r}")

    def free(self, seq):
        self.free_ids += self._table(seq)
        del self.tables[seq], self.lengths[seq]

    def block_table(self, seq, group=0):
        return self._table(seq)

    def take_copies(self):
        return []

    def stats(self):
        return {}

    def _table(self, seq):
        if seq not in self.tables:
            raise UnknownSequence(f"there is no sequence {seq!r}")
        return self.tables[seq]

    def _grow(self, seq, table, length):
        missing = -(-length // self.block_size) - len(table)
        if missing > len(self.free_ids):  # refused before anything has changed
            raise OutOfBlocks(f"{seq!r} needs {missing} more blocks, {len(self.free_ids)} are free")
        self.tables[seq] = table + [self.free_ids.pop() for _ in range(missing)]
        self.lengths[seq] = length


class Adapter:
    """What kvbench loads."""

    name = "paged-list"
    version = "1.0"
    about = "a free list, as simple as it gets"
    capabilities = Capabilities(manager=ManagerCapabilities())

    def manager(self, spec, config):
        return Manager(spec)
