"""Making a failing script small: fewer operations, shorter prompts, a plainer pool.

Hypothesis shrinks what it drew; here the script itself is at hand and operations that do not apply are left out by the
client, so any subset of it is a script again. That takes tens of runs where hypothesis takes hundreds, which matters
where a step is an engine's forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kvbench.checks import Failure, Violation
from kvbench.subject import EngineError
from kvbench.suites.lifecycle.operations import Begin, Draft, EndStep, Extend, Operation, Script

Fails = Callable[[Script], Violation | None]


def shrink(failure: Failure, fails: Fails, seconds: float) -> Failure:
    """The smallest script found within `seconds` that still fails. fails: runs a script; the violation, if it fails."""
    deadline = time.monotonic() + seconds
    smallest, found = failure.case, failure.violation
    progress = True
    while progress:
        progress = False
        for candidates in (_without_runs, _with_simpler_operations, _with_plainer_pools):
            searching = True
            while searching and time.monotonic() < deadline:
                searching = False
                for candidate in candidates(smallest):
                    if time.monotonic() > deadline:
                        break
                    violation = fails(candidate)
                    if violation is not None and _crashed(violation) == _crashed(failure.violation):
                        smallest, found, searching, progress = candidate, violation, True, True
                        break
        if time.monotonic() > deadline:
            break
    named = _renamed(smallest)
    violation = fails(named)
    return Failure(smallest, found) if violation is None else Failure(named, violation)


def _crashed(violation: Violation) -> bool:
    """Whether the engine raised something: a wrong answer is not shrunk to a crash, nor the other way round."""
    return isinstance(violation.__cause__, EngineError)


def _without_runs(script: Script) -> Iterator[Script]:
    """The script without a run of operations, long runs first, later ones first."""
    count = len(script.operations)
    size = count
    while size:
        for start in range(count - size, -1, -max(1, size // 2)):
            yield replace(script, operations=script.operations[:start] + script.operations[start + size :])
        size //= 2


def _with_simpler_operations(script: Script) -> Iterator[Script]:
    """The script with one operation made plainer."""
    for place, operation in enumerate(script.operations):
        for plainer in _plainer(operation):
            yield replace(script, operations=(*script.operations[:place], plainer, *script.operations[place + 1 :]))


def _plainer(operation: Operation) -> Iterator[Operation]:
    match operation:
        case EndStep(chunk=chunk) if chunk is not None:
            yield EndStep()
        case Begin(tokens=tokens, namespace=namespace):
            if namespace is not None:
                yield replace(operation, namespace=None)
            for fewer in _fewer(tokens):
                yield replace(operation, tokens=fewer)
        case Extend(tokens=tokens):
            for fewer in _fewer(tokens):
                yield replace(operation, tokens=fewer)
        case Draft(tokens=tokens, accepted=accepted):
            for fewer in _fewer(tokens):
                yield replace(operation, tokens=fewer, accepted=min(accepted, len(fewer)))
            if accepted:
                yield replace(operation, accepted=accepted - 1)
        case _:
            return


def _fewer(tokens: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Shorter, then plainer, never empty."""
    if len(tokens) > 1:
        for length in dict.fromkeys((1, len(tokens) // 2, len(tokens) - 1)):
            yield tokens[:length]
    for place, token in enumerate(tokens):
        if token != 1:
            yield (*tokens[:place], 1, *tokens[place + 1 :])


def _with_plainer_pools(script: Script) -> Iterator[Script]:
    pool = script.pool
    if pool.host_blocks:
        yield replace(script, pool=replace(pool, host_blocks=0))
        yield replace(script, pool=replace(pool, host_blocks=pool.host_blocks - 1))
    if len(pool.groups) > 1:
        for group in pool.groups:
            yield replace(script, pool=replace(pool, groups=(group,)))
    if pool.prefix_caching:
        yield replace(script, pool=replace(pool, prefix_caching=False))
    if pool.num_blocks > 1:
        yield replace(script, pool=replace(pool, num_blocks=pool.num_blocks - 1))


def _renamed(script: Script) -> Script:
    """Sequences called a, b, c, ... in the order in which they appear."""
    names: dict[str, str] = {}
    operations = []
    for operation in script.operations:
        used = {key: getattr(operation, key) for key in ("seq", "parent", "child") if hasattr(operation, key)}
        for name in used.values():
            names.setdefault(name, sequence_name(len(names)))
        renamed: dict[str, Any] = {key: names[name] for key, name in used.items()}
        operations.append(replace(operation, **renamed))
    return replace(script, operations=tuple(operations))


def sequence_name(number: int) -> str:
    """a, b, ..., z, a2, b2, ..."""
    letter, turn = chr(ord("a") + number % 26), number // 26
    return letter if turn == 0 else f"{letter}{turn + 1}"


__all__ = ["sequence_name", "shrink"]
