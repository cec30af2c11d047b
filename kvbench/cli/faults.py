"""`kvbench faults`."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from kvbench.budget import Budget, parse_budget
from kvbench.cli.console import Output
from kvbench.errors import UsageError
from kvbench.faults.catalogue import controls, faults
from kvbench.faults.matrix import Trial, entries, hold, not_held
from kvbench.names import closest
from kvbench.suites.catalogue import CHECKS

if TYPE_CHECKING:
    from rich.console import Console

    from kvbench.measurement import Announce

DEADLINE = 900.0
"""Seconds after which a trial is given up."""


def run(parsed: Namespace, output: Output) -> int:
    """Show the catalogue to the checks; 1 unless every fault is alive and killed and no control is accused."""
    budget = parse_budget(parsed.budget)
    names = _names(parsed.only)
    jobs = parsed.jobs or os.cpu_count() or 1
    with output.progress() as announce:
        made = _hold_all(names, budget, parsed.seed, jobs, announce, exhaustive=parsed.exhaustive)
        order = {name: place for place, name in enumerate(names)}
        trials = sorted(made, key=lambda trial: order[trial.id])
    summary = summarise(trials)
    output.json({"summary": summary, "faults": [_flat(trial) for trial in trials if trial.kind == "fault"],
                 "controls": [_flat(trial) for trial in trials if trial.kind == "control"]})  # fmt: skip
    if not output.as_json:
        print_trials(output.console, trials, exhaustive=parsed.exhaustive)
    return 0 if all(trial.as_it_should_be for trial in trials) else 1


def _names(only: Sequence[str]) -> list[str]:
    """The ids of what is asked for. Raises `UsageError` for one that is not in the catalogue."""
    known = {fault.id for fault in faults()} | {fault.class_id for fault in faults()} | {c.id for c in controls()}
    for name in only:
        if name not in known:
            raise UsageError(f"there is no fault {name!r}{closest(name, known)}; kvbench list faults shows them")
    return [entry.id for entry in entries(only)]


def summarise(trials: Sequence[Trial]) -> dict[str, Any]:
    """Counts, who survived, who was wrongly accused; seconds and sizes of the kills."""
    shown = [trial for trial in trials if trial.kind == "fault"]
    kills = [trial.kills[0] for trial in shown if trial.kills]
    operations = [kill.operations for kill in kills if kill.operations is not None]
    sequences = [kill.sequences for kill in kills if kill.sequences is not None]
    return {
        "total": len(shown),
        "killed": len(kills),
        "survived": [trial.id for trial in shown if not trial.killed],
        "false_alarms": [trial.id for trial in trials if trial.kind == "control" and trial.killed],
        "not_alive": [trial.id for trial in shown if not trial.alive],
        "errors": [trial.id for trial in trials if trial.error],
        "median_seconds": statistics.median(kill.seconds for kill in kills) if kills else None,
        "worst_seconds": max((kill.seconds for kill in kills), default=None),
        "median_operations": statistics.median(operations) if operations else None,
        "median_sequences": statistics.median(sequences) if sequences else None,
    }


def _flat(trial: Trial) -> dict[str, Any]:
    kill = trial.kills[0] if trial.kills else None
    return {
        "id": trial.id,
        "class": trial.class_id,
        "component": trial.component,
        "difficulty": trial.difficulty,
        "about": trial.about,
        "seed": trial.seed,
        "alive": trial.alive,
        "killed": trial.killed,
        "check": kill and kill.check,
        "seconds": kill.seconds if kill else trial.seconds,
        "cases": kill and kill.cases,
        "operations": kill and kill.operations,
        "sequences": kill and kill.sequences,
        "message": kill.message if kill else trial.error,
        "killed_by": [one.check for one in trial.kills],
    }


# --------------------------------------------------------------------------------------------------------------------
# Trials in processes of their own, so that one that dies or hangs is a result
# --------------------------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A trial that is being held."""

    name: str
    process: BaseProcess
    until: float


def _hold_all(
    names: Sequence[str], budget: Budget, seed: int, jobs: int, announce: Announce, *, exhaustive: bool
) -> Iterator[Trial]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "kvbench.reference.kernel", "kvbench.adapters.torch_kernel"])
    waiting, running, done = list(reversed(names)), dict[Connection, Running](), 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop()
                receiving, sending = context.Pipe(duplex=False)
                process = context.Process(target=_hold, args=(name, budget, seed, exhaustive, sending), daemon=True)
                process.start()
                sending.close()
                running[receiving] = Running(name, process, time.monotonic() + DEADLINE)
            announce(", ".join(one.name for one in running.values()), done, len(names))
            ended = wait(list(running), timeout=1.0)
            for receiving in [one for one in running if one in ended] or _overdue(running):
                yield _received(receiving, running.pop(receiving), seed)
                done += 1
    finally:
        for one in running.values():
            one.process.kill()


def _hold(name: str, budget: Budget, seed: int, exhaustive: bool, sending: Connection) -> None:
    """In the child: hold one trial and send it back. One thread: as many trials as cores are held at a time."""
    import torch

    torch.set_num_threads(1)
    (entry,) = entries([name])
    sending.send(hold(entry, CHECKS, budget, seed, exhaustive=exhaustive))
    sending.close()


def _overdue(running: dict[Connection, Running]) -> list[Connection]:
    return [receiving for receiving, one in running.items() if time.monotonic() > one.until]


def _received(receiving: Connection, one: Running, seed: int) -> Trial:
    (entry,) = entries([one.name])
    try:
        if not receiving.poll():
            one.process.kill()
            return replace(not_held(entry, seed), error=f"not done after {DEADLINE:.0f} s", seconds=DEADLINE)
        trial: Trial = receiving.recv()
    except EOFError:
        one.process.join()
        return replace(not_held(entry, seed), error=f"the process died with exit code {one.process.exitcode}")
    one.process.join()
    return trial


# --------------------------------------------------------------------------------------------------------------------
# Tables
# --------------------------------------------------------------------------------------------------------------------


def print_trials(console: Console, trials: Sequence[Trial], *, exhaustive: bool) -> None:
    """A row a fault and control, then what stands out."""
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    for name in ("id", "what it does wrong", "killed by", "seconds", "operations"):
        table.add_column(name, justify="right" if name in ("seconds", "operations") else "left", overflow="fold")
    for trial in trials:
        table.add_row(trial.id, escape(trial.about), *_outcome(trial))
    console.print(table)
    if exhaustive:
        _print_only_killers(console, trials)
    summary = summarise(trials)
    if summary["total"]:
        console.print(f"{summary['killed']} of {summary['total']} faults killed", end="")
        if summary["killed"]:
            median, worst = summary["median_seconds"], summary["worst_seconds"]
            console.print(f", median {median:.2g} s, worst {worst:.2g} s", end="")
        if summary["median_operations"]:
            console.print(f"; scripts of {summary['median_operations']:g} operations in the median", end="")
        console.print()
    for what, words in (
        ("survived", "survived"), ("not_alive", "not alive"), ("false_alarms", "false alarms"), ("errors", "errors"),
    ):  # fmt: skip
        if summary[what]:
            console.print(f"[bold red]{words}[/bold red]: {escape(', '.join(summary[what]))}")
    for trial in trials:
        if trial.error:
            console.print(f"[yellow]{escape(trial.id)}: {escape(trial.error)}[/yellow]")
    accused = [trial for trial in trials if trial.kind == "control" and trial.killed]
    for trial in accused:
        console.print(f"[bold red]{escape(trial.id)}[/bold red]: {escape(trial.kills[0].message)}")


def _outcome(trial: Trial) -> tuple[str, str, str]:
    if trial.error:
        return "[yellow]error[/yellow]", "", ""
    if not trial.kills:
        told = "[green]clean[/green]" if trial.kind == "control" else "[bold red]survived[/bold red]"
        return told, f"{trial.seconds:.2g}", ""
    kill = trial.kills[0]
    style = "bold red" if trial.kind == "control" else "green"
    more = f" and {len(trial.kills) - 1} more" if len(trial.kills) > 1 else ""
    operations = "" if kill.operations is None else str(kill.operations)
    return f"[{style}]{escape(kill.check)}[/{style}]{more}", f"{kill.seconds:.2g}", operations


def _print_only_killers(console: Console, trials: Sequence[Trial]) -> None:
    """Which faults a check alone finds: what would be lost without it."""
    alone = {trial.id: trial.kills[0].check for trial in trials if trial.kind == "fault" and len(trial.kills) == 1}
    killers = Counter(kill.check for trial in trials if trial.kind == "fault" for kill in trial.kills)
    table = Table(header_style="bold", padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    for name in ("check", "kills", "alone"):
        table.add_column(name, overflow="fold")
    for check in CHECKS:
        lost = [name for name, killer in alone.items() if killer == check.name]
        table.add_row(check.name, str(killers[check.name]), ", ".join(lost))
    console.print(table)


__all__ = ["print_trials", "run", "summarise"]
