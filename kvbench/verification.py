"""Running checks on adapters: one record a check and configuration, one counterexample a failure."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.budget import Budget, Effort, effort
from kvbench.checks import Check, Failure, NotApplicable, Outcome, skip_reason
from kvbench.codec import decode
from kvbench.counterexample import Counterexample, make_counterexample, read_counterexample
from kvbench.errors import InputError, KvbenchError, UsageError
from kvbench.interface import PoolSpec
from kvbench.names import closest
from kvbench.registry import check_kernel, check_manager, load_adapter
from kvbench.results import Record, ResultFolder, Verdict
from kvbench.search import judge, search
from kvbench.subject import REFERENCE, EngineError, Subject

CONFIRMATIONS = 3
"""How often a failing case is run again before it is reported."""


@dataclass(frozen=True)
class Entry:
    """An adapter as the user named it, with its configuration."""

    spec: str
    subject: Subject


@dataclass(frozen=True)
class Question:
    """One check, asked of one configuration of an adapter."""

    spec: str
    subject: Subject
    check: Check

    @property
    def label(self) -> str:
        """What is asked, in a line."""
        return f"{self.subject.label}: {self.check.name}"


@dataclass(frozen=True)
class Finding:
    """A failed check as it was reported, with its counterexample."""

    record: Record
    counterexample: Counterexample


def open_entries(specs: Sequence[str], config: Mapping[str, str]) -> list[Entry]:
    """Load and start the adapters that `specs` name.

    A setting applies to every adapter that has it; one that no adapter has is a `UsageError`. Raises `AdapterError`
    for an adapter that cannot be started.
    """
    if duplicates := sorted({spec for spec in specs if specs.count(spec) > 1}):
        raise UsageError(f"adapter {duplicates[0]!r} is named twice")
    adapters = [(spec, load_adapter(spec)) for spec in specs]
    taken: set[str] = set()
    entries = []
    for spec, adapter in adapters:
        names = {option.name for option in adapter.capabilities.config}
        names |= {"precision"} if adapter.capabilities.kernel is not None else set()
        own = {key: value for key, value in config.items() if key in names}
        taken |= set(own)
        subject = Subject(adapter, own)
        start(spec, subject)
        entries.append(Entry(spec, subject))
    if unused := sorted(set(config) - taken):
        known = {option.name for _, adapter in adapters for option in adapter.capabilities.config} | {"precision"}
        raise UsageError(f"no adapter here has the setting {unused[0]!r}{closest(unused[0], known)}")
    return entries


def start(spec: str, subject: Subject) -> None:
    """Make each half once. Raises `AdapterError` if one cannot be made or lacks what it declares."""
    from kvbench.errors import AdapterError

    declared = subject.adapter.capabilities
    try:
        if declared.manager is not None:
            block_size = declared.manager.block_sizes.among([16, 32, 8])[0]
            made = subject.new_manager(PoolSpec(num_blocks=16, block_size=block_size))
            check_manager(spec, made.unguarded, declared.manager.operations)
        if declared.kernel is not None:
            check_kernel(spec, subject.new_kernel().unguarded, declared.kernel.operations)
    except EngineError as error:
        raise AdapterError(f"adapter {spec}: {error}") from None


def check_named(checks: Sequence[Check], name: str) -> Check:
    """The check called `name`. Raises `InputError` with a suggestion."""
    for check in checks:
        if check.name == name:
            return check
    raise InputError(f"there is no check {name!r}{closest(name, [check.name for check in checks])}")


def verify(
    entries: Sequence[Entry],
    checks: Sequence[Check],
    budget: Budget,
    seed: int,
    folder: ResultFolder | None = None,
    announce: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> Iterator[Record | Finding]:
    """Run `checks` on every adapter, in every precision it declares; yield what came out as it comes.

    announce: called before each check with its name in words, how many are done and how many there are.
    """
    plan = [question for entry in entries for question in questions(entry, checks)]
    shares = Counter(question.spec for question in plan)
    for done, question in enumerate(plan):
        announce(question.label, done, len(plan))
        yield ask(question, effort(budget, seed, shares[question.spec]), folder)
    announce("done", len(plan), len(plan))


def questions(entry: Entry, checks: Sequence[Check]) -> Iterator[Question]:
    """Which check is asked of which configuration: managers know no precision, kernels are asked in each."""
    without = {key: value for key, value in entry.subject.config.items() if key != "precision"}
    for check in checks:
        if check.half == "manager":
            yield Question(entry.spec, dataclasses.replace(entry.subject, config=without), check)
    for precise in entry.subject.precisions():
        for check in checks:
            if check.half != "manager":
                yield Question(entry.spec, precise, check)


def _record(subject: Subject, check: Check, **values: Any) -> Record:
    return Record(
        suite=check.suite,
        check=check.name,
        adapter=subject.adapter.name,
        version=subject.adapter.version,
        config=dict(subject.config),
        **values,
    )


def ask(question: Question, share: Effort, folder: ResultFolder | None = None) -> Record | Finding:
    """Run one check; the record of what came out, with its counterexample if it failed."""
    subject, check = question.subject, question.check
    identity = _record(subject, check, params={"seed": share.seed})
    if folder is not None and (earlier := folder.done(identity)) is not None:
        if earlier.counterexample is None:
            return earlier
        saved = folder.path / "counterexamples" / Path(earlier.counterexample).name
        return Finding(earlier, read_counterexample(saved))
    started = time.perf_counter()
    if (reason := skip_reason(check, subject)) is not None:
        return _kept(dataclasses.replace(identity, verdict="skip", reason=reason), folder)
    try:
        outcome = search(check, subject, share)
    except KvbenchError:
        raise
    except Exception as error:
        reason = f"the check itself failed: {type(error).__name__}: {str(error)[:300]}"
        return _kept(dataclasses.replace(identity, verdict="error", reason=reason), folder)
    seconds = time.perf_counter() - started
    measured = dataclasses.replace(identity, value=float(outcome.cases), unit="cases", samples=(seconds,))
    if outcome.failure is None:
        return _kept(_passed(measured, outcome), folder)
    return _failed(question, outcome.failure, measured, folder)


def _passed(record: Record, outcome: Outcome) -> Record:
    if outcome.cases == 0:
        return dataclasses.replace(record, verdict="skip", reason="no case fits what the adapter declares")
    return dataclasses.replace(record, verdict="pass", coverage=outcome.reached or {})


def _failed(question: Question, failure: Failure, record: Record, folder: ResultFolder | None) -> Finding:
    subject, check = question.subject, question.check
    again = sum(judge(check, subject, failure.case) is not None for _ in range(CONFIRMATIONS))
    on_reference, ours = _ask_reference(subject, check, failure.case)
    counterexample = dataclasses.replace(
        make_counterexample(check, subject, question.spec, failure, record.params["seed"]),
        reproduced=f"{again} of {CONFIRMATIONS}",
        on_reference=on_reference,
    )
    is_reference = subject.adapter.name == REFERENCE.name
    verdict: Verdict = "fail"
    reason = failure.violation.message
    if ours and not is_reference:
        verdict = "error"
        reason = f"the reference fails this case too, so the check is at fault: {reason}"
    name = None
    if folder is not None:
        stem = f"{subject.adapter.name}-{check.name}" + "".join(f"-{k}={v}" for k, v in sorted(subject.config.items()))
        name = folder.write_counterexample(stem, counterexample)
    failed = dataclasses.replace(record, verdict=verdict, reason=reason, counterexample=name)
    return Finding(_kept(failed, folder), counterexample)


def _ask_reference(subject: Subject, check: Check, case: Any) -> tuple[str, bool]:
    """What the reference says of a case, in words, and whether it fails it."""
    reference = Subject(REFERENCE).at_nearest_precision(subject.precision.name)
    try:
        violation = judge(check, reference, case)
    except NotApplicable as error:
        return f"cannot be asked: {error}", False
    return ("passes", False) if violation is None else (f"fails: {violation.message}", True)


def _kept(record: Record, folder: ResultFolder | None) -> Record:
    return record if folder is None else folder.append(record)


def replay(counterexample: Counterexample, checks: Sequence[Check], spec: str | None = None) -> tuple[Subject, Any]:
    """Run a counterexample again, on the adapter that it was found on or on `spec`.

    Returns the subject and the violation, None if the case passes now. Raises `InputError` for a case that is not one,
    `UsageError` where the adapter cannot be asked.
    """
    check = check_named(checks, counterexample.check)
    case: Any = decode(check.case_type, counterexample.case, "case")
    if spec is None or spec == counterexample.adapter:
        subject = open_entries([counterexample.adapter], counterexample.config)[0].subject
    else:
        other = load_adapter(spec)
        subject = Subject(other).at_nearest_precision(counterexample.config.get("precision"))
        start(spec, subject)
    try:
        return subject, judge(check, subject, case)
    except NotApplicable as error:
        raise UsageError(f"{subject.label} cannot be asked this case: {error}") from None
