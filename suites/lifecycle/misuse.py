"""What no caller should do: each kind as a call, and when it can be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvbench.errors import CacheError
from kvbench.interface import ManagerOperation
from kvbench.subject import GuardedManager
from kvbench.suites.lifecycle.model import Live, Model
from kvbench.suites.lifecycle.operations import Misuse, MisuseKind

BEYOND = 3
"""How far past a sequence's end a wrong length lies."""

NEEDS: Mapping[MisuseKind, ManagerOperation] = {
    "truncate_unknown": "truncate",
    "truncate_negative": "truncate",
    "truncate_beyond": "truncate",
    "fork_unknown": "fork",
    "fork_onto_live": "fork",
    "preempt_unknown": "preempt",
    "resume_running": "preempt",
    "swap_out_unknown": "swap",
    "swap_in_running": "swap",
}
"""The optional operation that a kind misuses."""

CALLS: Mapping[MisuseKind, Callable[[GuardedManager, str, Live | None], object]] = {
    "free_unknown": lambda manager, name, _: manager.free(name),
    "free_twice": lambda manager, name, _: manager.free(name),
    "begin_live": lambda manager, name, seq: manager.begin(name, _other_tokens(seq)),
    "extend_unknown": lambda manager, name, _: manager.extend(name, [1]),
    "commit_unknown": lambda manager, name, _: manager.commit(name, 1),
    "commit_beyond": lambda manager, name, seq: manager.commit(name, _length(seq) + BEYOND),
    "truncate_unknown": lambda manager, name, _: manager.truncate(name, 0),
    "truncate_negative": lambda manager, name, _: manager.truncate(name, -1),
    "truncate_beyond": lambda manager, name, seq: manager.truncate(name, _length(seq) + BEYOND),
    "fork_unknown": lambda manager, name, _: manager.fork(name, name + "'"),
    "fork_onto_live": lambda manager, name, _: manager.fork(name, name),
    "preempt_unknown": lambda manager, name, _: manager.preempt(name),
    "resume_running": lambda manager, name, _: manager.resume(name),
    "swap_out_unknown": lambda manager, name, _: manager.swap_out(name),
    "swap_in_running": lambda manager, name, _: manager.swap_in(name),
}


def _length(seq: Live | None) -> int:
    return 0 if seq is None else seq.length


def _other_tokens(seq: Live | None) -> list[int]:
    return [7] * (_length(seq) + BEYOND)


def applies(misuse: Misuse, model: Model, operations: frozenset[ManagerOperation]) -> bool:
    """Whether the situation that is misused is there: a running sequence, or a name that nobody has."""
    if misuse.kind in NEEDS and NEEDS[misuse.kind] not in operations:
        return False
    seq = model.live.get(misuse.seq)
    if misuse.kind == "free_twice":
        return seq is None and any(name == misuse.seq for name, _ in model.history)
    if misuse.kind.endswith("_unknown"):
        return seq is None
    return seq is not None and seq.state == "running" and seq.pending == 0


def commit(misuse: Misuse, manager: GuardedManager, model: Model) -> str:
    """Make the call; how the manager took it, in words."""
    try:
        CALLS[misuse.kind](manager, misuse.seq, model.live.get(misuse.seq))
    except CacheError as error:
        return f"refused: {type(error).__name__}"
    return "accepted without an error"


__all__ = ["BEYOND", "CALLS", "NEEDS", "applies", "commit"]
