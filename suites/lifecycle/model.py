"""What every sequence must read: plain lists and dictionaries, no blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kvbench.canary import Identities, as_identities, chain_root, extend_chain
from kvbench.interface import PoolSpec

State = Literal["running", "preempted", "swapped"]

_EPOCH = 1 << 40
"""Far above every token id, so that the number of a reset is never taken for a token."""


@dataclass
class Live:
    """A sequence that was begun and is not freed.

    rows: identity of the K/V row of each token: the chain hash of its namespace, of the resets before it was begun,
        and of the tokens up to it. Equal identities, equal content.
    computed: leading rows that exist. cached: of these, how many came from the prefix cache.
    fresh: rows from here on got their slots in the step that is open.
    drafts: how many of the last tokens are drafts; accepted: how many of them the step's end accepts.
    moved: the step in which it last got a place (was begun, forked, resumed, swapped).
    grown_at: computed rows when it was last extended: a manager may wait until then to release behind windows.
    """

    name: str
    namespace: str | None
    tokens: list[int]
    rows: Identities
    computed: int = 0
    cached: int = 0
    fresh: int = 0
    drafts: int = 0
    accepted: int = 0
    moved: int = 0
    grown_at: int = 0
    state: State = "running"

    @property
    def length(self) -> int:
        """Tokens that have slots."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose rows are still to be written."""
        return self.length - self.computed


@dataclass
class Model:
    """All sequences, and which rows may be hit.

    accepted: rows that were ever committed: what a prefix cache may know of.
    history: rows of sequences as they ended, to tell what was read where something wrong was.
    namespaces: under which something was begun.
    """

    spec: PoolSpec
    live: dict[str, Live] = field(default_factory=dict)
    epoch: int = 0
    accepted: set[int] = field(default_factory=set)
    history: list[tuple[str, Identities]] = field(default_factory=list)
    namespaces: set[str | None] = field(default_factory=set)

    def root(self, namespace: str | None, epoch: int) -> int:
        """Identity before the first token; every reset makes new ones."""
        root = chain_root(namespace)
        return extend_chain(root, [_EPOCH + epoch])[0] if epoch else root

    def chain(self, namespace: str | None, tokens: Sequence[int], epoch: int | None = None) -> Identities:
        """Identities of the rows of a prompt begun after `epoch` resets (None: now)."""
        return as_identities(extend_chain(self.root(namespace, self.epoch if epoch is None else epoch), tokens))

    def running(self) -> list[Live]:
        """Sequences that have a block table."""
        return [seq for seq in self.live.values() if seq.state == "running"]

    def blocks_for(self, length: int) -> int:
        """Blocks of one group that hold `length` tokens."""
        return -(-length // self.spec.block_size)

    def first_visible(self, group: int, position: int) -> int:
        """The first row that a query at `position` sees: position - window + 1, or 0."""
        window = self.spec.groups[group].window
        return 0 if window is None else max(0, position - window + 1)

    def begin(self, name: str, tokens: Sequence[int], namespace: str | None, cached: int) -> Live:
        """`name` was admitted, with its first `cached` rows in place."""
        rows = self.chain(namespace, tokens)
        self.namespaces.add(namespace)
        self.live[name] = Live(name, namespace, list(tokens), rows, cached, cached, cached)
        return self.live[name]

    def extend(self, seq: Live, tokens: Sequence[int], drafts: bool = False, accepted: int = 0) -> None:
        """`seq` got slots for more tokens."""
        seq.grown_at = seq.computed
        start = int(seq.rows[-1]) if seq.length else self.root(seq.namespace, self.epoch)
        seq.rows = np.concatenate([seq.rows, as_identities(extend_chain(start, tokens))])
        seq.tokens.extend(tokens)
        if drafts:
            seq.drafts, seq.accepted = len(tokens), accepted

    def truncate(self, seq: Live, length: int) -> None:
        """`seq` keeps its first `length` tokens."""
        self.history.append((seq.name, seq.rows))
        seq.rows = seq.rows[:length]
        del seq.tokens[length:]
        seq.computed = min(seq.computed, length)
        seq.fresh = min(seq.fresh, length)

    def fork(self, parent: Live, child: str) -> None:
        """`child` starts as a copy of `parent`."""
        self.live[child] = Live(
            child, parent.namespace, parent.tokens.copy(), parent.rows, parent.computed, parent.computed, parent.length
        )
        self.live[child].grown_at = parent.grown_at

    def free(self, seq: Live) -> None:
        """`seq` is gone."""
        self.history.append((seq.name, seq.rows))
        del self.live[seq.name]

    def preempt(self, seq: Live) -> None:
        """`seq` has tokens but no blocks."""
        seq.state, seq.computed, seq.cached, seq.fresh, seq.grown_at = "preempted", 0, 0, seq.length, 0
        seq.drafts = seq.accepted = 0

    def resume(self, seq: Live, cached: int) -> None:
        """`seq` was admitted again; what it computes now follows the resets up to now."""
        self.history.append((seq.name, seq.rows))
        seq.rows = self.chain(seq.namespace, seq.tokens)
        seq.state, seq.computed, seq.cached, seq.fresh = "running", cached, cached, cached

    def commit(self, seq: Live, length: int) -> None:
        """The first `length` rows exist and are accepted."""
        self.accepted.update(seq.rows[seq.computed : length].tolist())
        seq.computed = length

    def pending_this_step(self, but: str) -> set[int]:
        """Rows that others than `but` got slots for in this step and will write in it, drafts left out."""
        rows: set[int] = set()
        for seq in self.running():
            if seq.name != but and seq.fresh < seq.length:
                rows.update(seq.rows[max(seq.fresh, seq.computed) : seq.length - seq.drafts].tolist())
        return rows

    def tell(self, row: int) -> str:
        """A row in words: "position 17 of a"."""
        known = [(seq.name, seq.rows) for seq in self.live.values()] + self.history[::-1]
        for name, rows in known:
            places = np.flatnonzero(rows == np.uint64(row))
            if len(places):
                return f"position {int(places[0])} of {name}"
        return "a row that nobody wrote"


__all__ = ["Live", "Model", "State"]
