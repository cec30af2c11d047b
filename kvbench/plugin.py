"""The pytest plugin: kvbench's suites on any adapter, from the command line or from a user's own test file.

    pytest --pyargs kvbench.suites --kv-adapter ./my_cache.py:Adapter

or, in a test file:

    @pytest.mark.kvbench("./my_cache.py:Adapter")
    def test_my_cache(kv_check):
        kv_check()

Nothing heavy is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvbench.errors import InputError, KvbenchError

if TYPE_CHECKING:
    from kvbench.budget import Budget, Effort
    from kvbench.results import Record
    from kvbench.verification import Entry, Question

pytest.register_assert_rewrite("kvbench.suites")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suites."""
    group = parser.getgroup("kvbench", "verification of paged KV caches")
    group.addoption(
        "--kv-adapter",
        action="append",
        default=[],
        metavar="SPEC",
        help="adapter to check (a name, package.module:Class or ./file.py:Class); may be repeated",
    )
    group.addoption("--kv-budget", default="quick", metavar="B", help="quick (default), standard, deep, or 30s")
    group.addoption("--kv-seed", type=int, default=0, metavar="N", help="seed of all generated cases (default 0)")
    group.addoption(
        "--kv-config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the adapters; may be repeated",
    )
    group.addoption(
        "--kv-xfail",
        metavar="FILE",
        help="expected failures, a line each: TEST-ID: reason (TEST-ID may have * in it, # starts a comment)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and read the expected failures."""
    config.addinivalue_line(
        "markers",
        "kvbench(*adapters, suite=None): the adapters, and the suite or check, that a test with kv_check is run for",
    )
    path = config.getoption("--kv-xfail")
    try:
        expected = read_expected_failures(Path(path)) if path else []
    except InputError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[EXPECTED] = expected


# --------------------------------------------------------------------------------------------------------------------
# Expected failures
# --------------------------------------------------------------------------------------------------------------------


@dataclass
class ExpectedFailure:
    """A line of the file given by --kv-xfail, and what became of it."""

    pattern: str
    reason: str
    matched: list[str] = field(default_factory=list)


EXPECTED = pytest.StashKey[list[ExpectedFailure]]()


def read_expected_failures(path: Path) -> list[ExpectedFailure]:
    """The lines "TEST-ID: reason" of a file. Raises `InputError` naming a line that has no reason."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    expected = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        pattern, separator, reason = text.partition(": ")
        if not separator or not reason.strip():
            raise InputError(f"{path}:{number}: expected 'TEST-ID: reason', found {text!r}")
        expected.append(ExpectedFailure(pattern.strip(), reason.strip()))
    return expected


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that are expected to fail."""
    for item in items:
        identity = getattr(getattr(item, "callspec", None), "id", "")
        for expected in config.stash[EXPECTED]:
            if identity and fnmatchcase(identity, expected.pattern):
                expected.matched.append(identity)
                item.add_marker(pytest.mark.xfail(reason=expected.reason, strict=False))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which expected failures have passed, and which lines of the file fit no test."""
    passed = terminalreporter.stats.get("xpassed", [])
    idle = [expected for expected in config.stash[EXPECTED] if not expected.matched]
    if not config.stash[EXPECTED] or not (passed or idle):
        return
    terminalreporter.section("kvbench: expected failures to look at")
    for report in passed:
        terminalreporter.line(f"passes now: {report.nodeid}: take its line out of the file")
    for expected in idle:
        terminalreporter.line(f"fits no test: {expected.pattern}: {expected.reason}")


# --------------------------------------------------------------------------------------------------------------------
# The suites
# --------------------------------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a check and configuration for `kv_check`, one an adapter for `kv_entry`."""
    if "kv_check" in metafunc.fixturenames:
        asked = _questions(metafunc)
        metafunc.parametrize("kv_check", asked, ids=[_identity(question) for question in asked], indirect=True)
    elif "kv_entry" in metafunc.fixturenames:
        entries = _entries(metafunc)
        metafunc.parametrize("kv_entry", entries, ids=[entry.subject.adapter.name for entry in entries])


def _specs(metafunc: pytest.Metafunc) -> list[str]:
    marker = metafunc.definition.get_closest_marker("kvbench")
    given = [*marker.args] if marker else []
    return given or list(metafunc.config.getoption("--kv-adapter"))


def _entries(metafunc: pytest.Metafunc) -> list[Entry]:
    from kvbench.cli.inputs import parse_config
    from kvbench.verification import open_entries

    try:
        return open_entries(_specs(metafunc), parse_config(metafunc.config.getoption("--kv-config")))
    except KvbenchError as error:
        raise pytest.UsageError(str(error)) from None


def _questions(metafunc: pytest.Metafunc) -> list[Question]:
    from kvbench.cli.inputs import choose_checks
    from kvbench.suites.catalogue import CHECKS
    from kvbench.verification import questions

    marker = metafunc.definition.get_closest_marker("kvbench")
    suite = marker.kwargs.get("suite") if marker else None
    try:
        checks = choose_checks(CHECKS, [suite] if suite else [])
    except KvbenchError as error:
        raise pytest.UsageError(str(error)) from None
    return [question for entry in _entries(metafunc) for question in questions(entry, checks)]


def _identity(question: Question) -> str:
    settings = "".join(f"-{value}" for _, value in sorted(question.subject.config.items()))
    return f"{question.subject.adapter.name}{settings}-{question.check.name}"


def _budget(config: pytest.Config) -> Budget:
    from kvbench.budget import parse_budget

    try:
        return parse_budget(config.getoption("--kv-budget"))
    except KvbenchError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def kv_budget(pytestconfig: pytest.Config) -> Budget:
    """The budget given by --kv-budget."""
    return _budget(pytestconfig)


@pytest.fixture
def kv_seed(pytestconfig: pytest.Config) -> int:
    """The seed given by --kv-seed."""
    seed: int = pytestconfig.getoption("--kv-seed")
    return seed


@dataclass(frozen=True)
class Asked:
    """A check that is ready to be run: call it."""

    question: Question
    effort: Effort
    folder: Path

    def __call__(self) -> Record:
        """Run the check; fails or skips the test as the check comes out."""
        from kvbench.codec import encode
        from kvbench.verification import Finding, ask

        __tracebackhide__ = True
        outcome = ask(self.question, self.effort)
        if isinstance(outcome, Finding):
            path = self.folder / f"{_identity(self.question)}.json".replace("/", "_")
            path.write_text(_to_json(encode(outcome.counterexample)), encoding="utf-8")
            story = "".join(f"\n  {line}" for line in outcome.counterexample.story)
            pytest.fail(f"{outcome.record.reason}{story}\nreplay: kvbench replay {path}", pytrace=False)
        if outcome.verdict == "skip":
            pytest.skip(outcome.reason)
        if outcome.verdict == "error":
            pytest.fail(outcome.reason, pytrace=False)
        return outcome


def _to_json(data: Any) -> str:
    import json

    return json.dumps(data, indent=1, allow_nan=False) + "\n"


@pytest.fixture
def kv_check(request: pytest.FixtureRequest, kv_budget: Budget, kv_seed: int) -> Asked:
    """A check of kvbench on an adapter; calling it runs it. Counterexamples go to pytest's cache folder."""
    from kvbench.budget import effort

    cache = getattr(request.config, "cache", None)  # there is none with -p no:cacheprovider
    folder = Path.cwd() if cache is None else cache.mkdir("kvbench")
    return Asked(request.param, effort(kv_budget, kv_seed, _peers(request)), folder)


def _peers(request: pytest.FixtureRequest) -> int:
    """How many checks share a time budget: those of the same adapter in this run."""
    spec = request.param.spec
    params: Sequence[Any] = [getattr(item, "callspec", None) for item in request.session.items]
    return sum(1 for found in params if found and getattr(found.params.get("kv_check"), "spec", None) == spec)
