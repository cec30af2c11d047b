"""The reference cache manager: who owns which block, stated as plainly as it can be executed.

Decisions that the interface leaves open:

- Blocks are shared at block granularity, when they are full and committed. `begin` and `resume` hit at most
  len(tokens) - 1 tokens, rounded down to a block. A block that turns out at `commit` to equal a cached one is exchanged
  for it, so that equal prefixes computed side by side end up in one copy.
- Uncommitted tokens are the caller's to write, whether they come from a prompt, a decode step or drafts: sharing waits
  for `commit`, so drafts need no special care.
- Copies are owed in an order in which carrying them out one after the other, before any write, is right. A source may
  therefore be released and handed out again in the same step: whatever is written there is written later.
- Blocks behind a window are released at `commit`, after the reads of the step. What the next query, at the committed
  length, can see stays; so does what any later one can.
- Cached blocks are evicted in the order in which they were last released, a sequence's last block before its first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence
from kvbench.interface import HOLE, Copy, PoolSpec, Tier
from kvbench.reference.blocks import BlockPool
from kvbench.reference.prefix import Prefix, PrefixCache
from kvbench.reference.refusals import check_length, check_pool, check_tokens
from kvbench.reference.sequence import Place, SequenceState, held_blocks


class ReferenceManager:
    """A `CacheManager` with every optional operation.

    hash_function: gives a prefix its bucket; replaced by tests that want collisions.
    """

    def __init__(self, spec: PoolSpec, hash_function: Callable[[Hashable], int] = hash) -> None:
        check_pool(spec)
        self.spec = spec
        self.pool = BlockPool(spec.num_blocks)
        self.host = BlockPool(spec.host_blocks)
        self.prefixes = PrefixCache(hash_function)
        self.sequences: dict[str, SequenceState] = {}
        self.copies: list[Copy] = []
        self.counters = {"prefix_queries": 0, "prefix_hits": 0, "evictions": 0, "preemptions": 0}

    # -- CacheManager ------------------------------------------------------------------------------------------------

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        """Admit `seq`; return how many leading tokens are hit."""
        self._check_new(seq)
        state = SequenceState(namespace, check_tokens(tokens), self._empty_tables())
        cached = self._admit(seq, state)
        self.sequences[seq] = state
        return cached

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        """Slots for more tokens; a tail block that others may still read is replaced by a copy first."""
        state = self._running(seq)
        added = check_tokens(tokens)
        if not added:
            return
        length = len(state.tokens)
        grow = self.blocks_for(length + len(added)) - self.blocks_for(length)
        tails = [table for table in state.tables if length % self.spec.block_size and self._is_shared(table[-1])]
        returned = sum(self.pool.references[table[-1]] == 1 for table in tails)
        self._require(seq, grow * len(state.tables) + len(tails) - returned)
        self._replace_tails(tails, grow, state.tables)
        state.tokens += added

    def commit(self, seq: str, length: int) -> None:
        """The K/V of the first `length` tokens exists: share its full blocks, let go of what is behind windows."""
        state = self._running(seq)
        check_length(seq, length, len(state.tokens))
        state.committed = max(state.committed, length)
        if state.chain:
            self._publish(state)
        self._release_behind_windows(state)

    def free(self, seq: str) -> None:
        """Forget `seq`, in whatever place it is."""
        state = self._find(seq)
        self._release_all(state)
        self._drop_chain(state, 0)
        del self.sequences[seq]

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        """The device blocks of a running sequence."""
        state = self._running(seq)
        if not 0 <= group < len(state.tables):
            raise InvalidRequest(f"group {group} does not exist; this pool has groups 0 to {len(state.tables) - 1}")
        return tuple(state.tables[group])

    def take_copies(self) -> Sequence[Copy]:
        """The copies owed since the last call."""
        taken, self.copies = self.copies, []
        return taken

    @property
    def usable_blocks(self) -> int:
        """The whole pool: no block is kept back."""
        return self.spec.num_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks obtainable now, exactly."""
        return self.pool.free

    def stats(self) -> Mapping[str, int]:
        """Counters since creation; admissions through `begin` and `resume` count as prefix queries."""
        return dict(self.counters)

    # -- optional operations -----------------------------------------------------------------------------------------

    def truncate(self, seq: str, length: int) -> None:
        """Keep the first `length` tokens. Raises `InvalidRequest` when a window has let go of what they would need."""
        state = self._running(seq)
        check_length(seq, length, len(state.tokens))
        self._check_resident(seq, state, length)
        kept = self.blocks_for(length)
        self._release_tails(state, kept)
        full = length // self.spec.block_size
        self._drop_chain(state, full + 1)
        state.published = min(state.published, full)
        state.committed = min(state.committed, length)
        del state.tokens[length:]

    def fork(self, parent: str, child: str) -> None:
        """A second sequence with the same tokens and blocks; the one that first writes into a shared tail copies it."""
        state = self._running(parent)
        self._check_new(child)
        for block in state.blocks():
            self.pool.share(block)
        for prefix in state.chain:
            prefix.uses += 1
        self.sequences[child] = SequenceState(
            state.namespace,
            state.tokens.copy(),
            [table.copy() for table in state.tables],
            state.committed,
            state.published,
            state.chain.copy(),
        )

    def preempt(self, seq: str) -> None:
        """Give up the blocks of `seq`, to be computed again after `resume`."""
        state = self._running(seq)
        self._release_all(state)
        state.tables = self._empty_tables()
        state.committed = state.published = 0
        state.place = Place.PREEMPTED
        self.counters["preemptions"] += 1

    def resume(self, seq: str) -> int:
        """Admit a preempted sequence again; return how many leading tokens are hit."""
        state = self._find(seq, Place.PREEMPTED)
        cached = self._admit(seq, state)
        state.place = Place.RUNNING
        return cached

    def swap_out(self, seq: str) -> None:
        """Move `seq` to host blocks of its own; blocks that others share stay with them."""
        state = self._running(seq)
        needed = len(state.blocks())
        if needed > self.host.free:
            raise OutOfBlocks(
                f"swapping out {seq!r} needs {needed} host blocks and {self.host.free} of {self.spec.host_blocks} are "
                "free; swap in or free another sequence, or give the pool more host_blocks"
            )
        moved = [[self._move_out(block) for block in table] for table in state.tables]
        self._release_all(state)
        state.tables, state.place = moved, Place.SWAPPED

    def swap_in(self, seq: str) -> None:
        """Move `seq` back to device blocks; they are offered to the cache again at the next commit."""
        state = self._find(seq, Place.SWAPPED)
        self._require(seq, len(state.blocks()))
        state.tables = [[self._move_in(block) for block in table] for table in state.tables]
        state.published, state.place = 0, Place.RUNNING

    def reset(self) -> None:
        """Forget all cached prefixes; K/V that exists now, and what is computed on top of it, is never shared."""
        for block in list(self.prefixes.published):
            self.prefixes.forget(block)
            self.pool.discard(block)
        for state in self.sequences.values():
            if state.place is not Place.PREEMPTED:
                self._drop_chain(state, 0)

    # -- admission and growth ----------------------------------------------------------------------------------------

    def _admit(self, seq: str, state: SequenceState) -> int:
        """Give `state`, which holds no blocks, its tables: what can be hit, then fresh blocks. Returns tokens hit."""
        known = len(state.chain)
        self._extend_chain(state, len(state.tokens))
        hit = self._longest_hit(state)
        cached = hit * self.spec.block_size
        tables = [self._hit_table(state, group, hit) for group in range(len(self.spec.groups))]
        hits = held_blocks(tables)
        grow = self.blocks_for(len(state.tokens)) - hit
        idle = sum(self.pool.references[block] == 0 for block in hits)
        try:
            self._require(seq, grow * len(tables) + idle)
        except OutOfBlocks:
            self._drop_chain(state, known)
            raise
        for block in hits:
            self.pool.share(block)
        for table in tables:
            table.extend(self._take() for _ in range(grow))
        state.tables, state.committed, state.published = tables, cached, hit
        if state.chain:
            self.counters["prefix_queries"] += len(state.tokens)
            self.counters["prefix_hits"] += cached
        return cached

    def _longest_hit(self, state: SequenceState) -> int:
        """The most leading blocks after which every group has all that the next query can see, and the last block."""
        limit = max(0, len(state.tokens) - 1) // self.spec.block_size
        runs = [0] * len(self.spec.groups)
        longest = 0
        for count, prefix in enumerate(state.chain[1 : limit + 1], start=1):
            runs = [run + 1 if group in prefix.blocks else 0 for group, run in enumerate(runs)]
            needed = [count - self.first_visible(group, count * self.spec.block_size) for group in range(len(runs))]
            if all(run >= max(1, need) for run, need in zip(runs, needed, strict=True)):
                longest = count
        return longest

    def _hit_table(self, state: SequenceState, group: int, hit: int) -> list[int]:
        """The cached blocks of the first `hit` prefixes, `HOLE` where the next query cannot see them."""
        first = self.first_visible(group, hit * self.spec.block_size)
        return [HOLE] * first + [prefix.blocks[group] for prefix in state.chain[first + 1 : hit + 1]]

    def _replace_tails(self, tails: list[list[int]], grow: int, tables: list[list[int]]) -> None:
        """Let each of `tails` end in a block of its own, then append `grow` blocks to every table.

        A cached tail that nobody else holds turns idle before its copy is taken, as the last to be evicted: if it is
        all that is left, the sequence gets the very same block back, out of the cache, and there is nothing to copy.
        """
        sources = [table[-1] for table in tails]
        last = [len(table) - 1 for table in tails]
        for source in sources:
            self._release(source)
        for table in tables:
            table.extend(self._take() for _ in range(grow))
        for table, index, source in zip(tails, last, sources, strict=True):
            table[index] = self._take()
            if table[index] != source:
                self.copies.append(Copy(source, table[index]))

    def _is_shared(self, block: int) -> bool:
        """Whether somebody else reads `block`, or may hit it."""
        return self.pool.references[block] > 1 or block in self.prefixes

    # -- sharing -----------------------------------------------------------------------------------------------------

    def _extend_chain(self, state: SequenceState, length: int) -> None:
        """Bring the chain up to the full blocks of the first `length` tokens."""
        if not self.spec.prefix_caching:
            return
        if not state.chain:
            state.chain.append(self.prefixes.hold(None, state.namespace))
        size = self.spec.block_size
        for index in range(len(state.chain) - 1, length // size):
            tokens = tuple(state.tokens[index * size : (index + 1) * size])
            state.chain.append(self.prefixes.hold(state.chain[-1], tokens))

    def _drop_chain(self, state: SequenceState, keep: int) -> None:
        """Shorten the chain to its first `keep` entries."""
        while len(state.chain) > keep:
            self.prefixes.drop(state.chain.pop())

    def _publish(self, state: SequenceState) -> None:
        """Offer the full blocks of committed tokens to the cache.

        Where the cache has an equal block that somebody uses, the sequence joins it; an idle one gives way to the
        sequence's own. Either way what a running sequence has published is what the cache has, so a prefix outlives
        its continuations in the eviction order.
        """
        self._extend_chain(state, state.committed)
        full = state.committed // self.spec.block_size
        for index in range(state.published, full):
            for group, table in enumerate(state.tables):
                if table[index] != HOLE:
                    table[index] = self._publish_block(state.chain[index + 1], group, table[index])
        state.published = max(state.published, full)

    def _publish_block(self, prefix: Prefix, group: int, block: int) -> int:
        """Make `block` findable, or return the block in use that is found already, exchanged for it."""
        present = prefix.blocks.get(group)
        if present == block:
            return block
        if present is not None and self.pool.references[present] > 0:
            self.pool.share(present)
            self._release(block)
            return present
        if present is not None:
            self.prefixes.forget(present)
            self.pool.discard(present)
        self.prefixes.publish(prefix, group, block)
        return block

    # -- taking and releasing blocks ---------------------------------------------------------------------------------

    def _take(self) -> int:
        """A device block whose content is nobody's; evicts if it must."""
        block = self.pool.take()
        if self.prefixes.forget(block):
            self.counters["evictions"] += 1
        return block

    def _release(self, block: int) -> None:
        """Give back one reference to a device block; the cache keeps what it may hit."""
        self.pool.release(block, keep=block in self.prefixes)

    def _release_all(self, state: SequenceState) -> None:
        """Give back every block of `state`, wherever they are."""
        if state.place is Place.SWAPPED:
            for block in state.blocks():
                self.host.release(block, keep=False)
        else:
            self._release_tails(state, 0)

    def _release_tails(self, state: SequenceState, kept: int) -> None:
        """Shorten the tables to `kept` blocks, the last block going first, so that it is evicted first."""
        while len(state.tables[0]) > kept:
            for table in state.tables:
                block = table.pop()
                if block != HOLE:
                    self._release(block)

    def _release_behind_windows(self, state: SequenceState) -> None:
        """Put holes where no query from the committed length on can see."""
        for group, table in enumerate(state.tables):
            index = self.first_visible(group, state.committed) - 1
            while index >= 0 and table[index] != HOLE:
                self._release(table[index])
                table[index] = HOLE
                index -= 1

    def _move_out(self, block: int) -> int:
        """A host block that will hold a copy of device block `block`."""
        if block == HOLE:
            return HOLE
        target = self.host.take()
        self.copies.append(Copy(block, target, Tier.OUT))
        return target

    def _move_in(self, block: int) -> int:
        """A device block that will hold a copy of host block `block`, which is given back."""
        if block == HOLE:
            return HOLE
        target = self._take()
        self.copies.append(Copy(block, target, Tier.IN))
        self.host.release(block, keep=False)
        return target

    # -- arithmetic and checks ---------------------------------------------------------------------------------------

    def blocks_for(self, length: int) -> int:
        """Blocks that hold `length` tokens in one group."""
        return -(-length // self.spec.block_size)

    def first_visible(self, group: int, position: int) -> int:
        """The first block with a key that a query at `position` or later sees: position - window + 1, or block 0."""
        window = self.spec.groups[group].window
        return 0 if window is None else max(0, position - window + 1) // self.spec.block_size

    def _empty_tables(self) -> list[list[int]]:
        return [[] for _ in self.spec.groups]

    def _find(self, seq: str, place: Place | None = None) -> SequenceState:
        if seq not in self.sequences:
            raise UnknownSequence(f"no sequence {seq!r}; begin or fork it first ({len(self.sequences)} are held)")
        state = self.sequences[seq]
        if place is not None and state.place is not place:
            raise InvalidRequest(f"sequence {seq!r} is {state.place.value}; this needs one that is {place.value}")
        return state

    def _running(self, seq: str) -> SequenceState:
        return self._find(seq, Place.RUNNING)

    def _check_new(self, seq: str) -> None:
        if seq in self.sequences:
            raise UnknownSequence(f"sequence {seq!r} is held already; free it first or choose another name")

    def _require(self, seq: str, needed: int) -> None:
        """Raise `OutOfBlocks` unless `needed` blocks can be taken."""
        if needed > self.pool.free:
            raise OutOfBlocks(
                f"{seq!r} needs {needed} blocks and {self.pool.free} of {self.spec.num_blocks} are obtainable; free, "
                "preempt or swap out another sequence"
            )

    def _check_resident(self, seq: str, state: SequenceState, length: int) -> None:
        """Whether a next query at `length` would find the keys that its windows let it see."""
        for group, table in enumerate(state.tables):
            first = self.first_visible(group, length)
            if first < self.blocks_for(length) and table[first] == HOLE:
                raise InvalidRequest(
                    f"{seq!r} cannot be truncated to {length} tokens: the window of group {group} has let go of block "
                    f"{first}; truncate to 0, or preempt the sequence and compute it again"
                )
