"""Situations that random operations rarely reach, recognised so that a run can say how often it was in each."""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.suites.lifecycle.client import Answer, View
from kvbench.suites.lifecycle.model import Live, Model
from kvbench.suites.lifecycle.operations import (
    Begin,
    Draft,
    EndStep,
    Extend,
    Fork,
    Free,
    Misuse,
    Operation,
    Preempt,
    Reset,
    Resume,
    SwapIn,
    Truncate,
)

NAMED = {SwapIn: "swap and back", Reset: "reset", Truncate: "accepted tokens dropped"}
"""Operations that are a regime whatever they do."""


def reached(
    operation: Operation, answer: Answer, before: View, after: View, seq: Live | None, model: Model
) -> Iterator[str]:
    """Names of the regimes that `operation` reached. seq: the sequence that it named, as it was before."""
    if answer.refused is not None:
        yield "out of blocks"
        return
    if after.free == 0 and before.free > 0:
        yield "pool exactly full"
    if type(operation) in NAMED:
        yield NAMED[type(operation)]
    match operation:
        case Begin() | Resume() if answer.cached:
            yield from _hit(operation, model)
        case EndStep(chunk=chunk) if chunk is not None:
            yield "prompt computed in chunks"
        case Draft(tokens=tokens, accepted=accepted):
            yield "all drafts accepted" if accepted == len(tokens) else "drafts rejected"
        case Extend() | Fork() if seq is not None and seq.length % model.spec.block_size:
            yield "growth inside a block" if isinstance(operation, Extend) else "fork with a partial tail"
        case Free() | Preempt() if seq is not None:
            yield from _stopped(operation, seq)
        case Misuse(kind=kind):
            yield kind.replace("_", " ")
        case _:
            return


def _hit(operation: Begin | Resume, model: Model) -> Iterator[str]:
    yield "prefix hit" if isinstance(operation, Begin) else "hit on resume"
    seq, size = model.live[operation.seq], model.spec.block_size
    if seq.length % size == 0 and seq.cached + size >= seq.length:
        yield "hit up to the last block of a full one"


def _stopped(operation: Operation, seq: Live) -> Iterator[str]:
    kind = "free" if isinstance(operation, Free) else "preempt"
    if seq.state != "running":
        yield f"{kind} while {seq.state}"
    elif seq.computed == 0:
        yield f"{kind} before anything was computed"
    elif seq.pending:
        yield f"{kind} half prefilled"
    else:
        yield kind
