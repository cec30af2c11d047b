"""The pytest plugin, run by pytest itself in a folder of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = (ROOT / "examples/paged_list.py").read_text()
LEAKING = EXAMPLE.replace("self.free_ids += self._table(seq)", "self.free_ids += self._table(seq)[1:]")


@pytest.fixture
def run_pytest(tmp_path):
    """Run pytest in an empty folder, with kvbench importable whether or not it is installed."""

    def run(*arguments):
        installed = "kvbench.plugin" in os.environ.get("PYTEST_PLUGINS", "")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rA", *([] if installed else ["-p", "kvbench.plugin"]), *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def leaking(tmp_path):
    assert LEAKING != EXAMPLE
    (tmp_path / "leaks.py").write_text(LEAKING)
    return "./leaks.py:Adapter"


def test_a_test_file_of_three_lines_runs_every_check(run_pytest, tmp_path):
    (tmp_path / "example.py").write_text(EXAMPLE)
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent("""
            import pytest

            @pytest.mark.kvbench("./example.py:Adapter", suite="lifecycle")
            def test_mine(kv_check):
                kv_check()
        """)
    )
    code, shown = run_pytest()
    assert code == 0, shown
    assert "test_mine[paged-list-lifecycle.manager]" in shown
    assert "has no kernel of its own" in shown


def test_the_suites_run_by_their_package_name(run_pytest, leaking):
    code, shown = run_pytest("--pyargs", "kvbench.suites", "--kv-adapter", leaking, "-k", "drain")
    assert code == 1, shown
    assert "paged-list-lifecycle.drain" in shown
    assert "replay: kvbench replay" in shown
    assert "Traceback" not in shown


def test_an_expected_failure_is_no_failure_and_one_that_passes_is_told(run_pytest, leaking, tmp_path):
    (tmp_path / "known.txt").write_text(
        "# what is known\npaged-list-lifecycle.drain: loses a block, issue 7\n"
        "paged-list-lifecycle.misuse: was wrong once\nother-*: of another adapter\n"
    )
    code, shown = run_pytest(
        "--pyargs", "kvbench.suites", "--kv-adapter", leaking, "-k", "drain", "--kv-xfail", "known.txt"
    )
    assert code == 0, shown
    assert "loses a block, issue 7" in shown
    assert "fits no test: other-*" in shown
    (tmp_path / "example.py").write_text(EXAMPLE)
    code, shown = run_pytest(
        "--pyargs", "kvbench.suites", "--kv-adapter", "./example.py:Adapter", "-k", "drain", "--kv-xfail", "known.txt"
    )
    assert code == 0, shown
    assert "passes now: " in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--kv-adapter", "nonsense"], "unknown adapter 'nonsense'"),
        (["--kv-adapter", "reference", "--kv-config", "precision"], "is not KEY=VALUE"),
        (["--kv-adapter", "reference", "--kv-xfail", "nowhere.txt"], "cannot read nowhere.txt"),
    ],
)
def test_wrong_options_are_told_in_a_line(run_pytest, arguments, complaint):
    code, shown = run_pytest("--pyargs", "kvbench.suites", "--collect-only", *arguments)
    assert code != 0
    assert complaint in shown
    assert "Traceback" not in shown


def test_an_expected_failure_needs_a_reason(run_pytest, tmp_path):
    (tmp_path / "known.txt").write_text("reference-lifecycle.drain\n")
    code, shown = run_pytest("--pyargs", "kvbench.suites", "--kv-adapter", "reference", "--kv-xfail", "known.txt")
    assert code != 0
    assert "known.txt:1: expected 'TEST-ID: reason'" in shown


def test_without_an_adapter_the_suites_are_skipped(run_pytest):
    code, shown = run_pytest("--pyargs", "kvbench.suites")
    assert code == 0, shown
    assert "skipped" in shown


def test_throughput_is_measured_by_pytest_benchmark(run_pytest):
    code, shown = run_pytest(
        "--pyargs", "kvbench.suites", "--kv-adapter", f"{ROOT}/examples/paged_list.py:Adapter", "-k", "append_rate"
    )
    assert code == 0, shown
    assert "benchmark 'append_rate': 1 tests" in shown
