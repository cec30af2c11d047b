"""The command line as a stranger meets it: one clear line and the right exit code, whatever goes in."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvbench.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = f"{ROOT}/examples/paged_list.py:Adapter"


def run(*arguments, **environment):
    """The process `python -m kvbench ARGUMENTS`."""
    return subprocess.run(
        [sys.executable, "-m", "kvbench", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def leaking_adapter(folder):
    """The example, losing one block of each sequence that it frees."""
    source = (ROOT / "examples/paged_list.py").read_text()
    leaking = source.replace("self.free_ids += self._table(seq)", "self.free_ids += self._table(seq)[1:]")
    assert leaking != source
    (folder / "leaks.py").write_text(leaking)
    return f"{folder / 'leaks.py'}:Adapter"


def test_help_imports_nothing_heavy():
    heavy = {"torch", "pandas", "numpy", "hypothesis", "rich", "scipy", "jinja2"}
    code = (
        "import sys, runpy; sys.argv = ['kvbench', '--help']\n"
        "try: runpy.run_module('kvbench', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"print('imported:', sorted({heavy!r} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert shown.endswith("imported: []\n")
    assert "exit codes:" in shown


def test_help_of_every_command_says_what_it_does_and_how_it_exits(capsys):
    for command in ("list", "verify", "replay", "run", "compare", "estimate", "report", "leaderboard"):
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        shown = capsys.readouterr().out
        assert "exit codes: 0 clean, 1 findings" in shown
        assert "--json" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["verfy"], "invalid choice: 'verfy'"),
        (["verify"], "the following arguments are required: ADAPTER"),
        (["verify", "nonsense"], "unknown adapter 'nonsense'"),
        (["verify", "refrence"], "did you mean 'reference'?"),
        (["verify", "reference", "--suite", "corectness"], "did you mean 'correctness'?"),
        (["verify", "reference", "--budget", "lots"], "unknown budget 'lots'"),
        (["verify", "reference", "--config", "precision"], "is not KEY=VALUE"),
        (["verify", "reference", "--config", "precision=f17"], "precision='f17' is not one of"),
        (["verify", "reference", "--config", "presicion=f16"], "did you mean 'precision'?"),
        (["verify", "reference", "reference"], "adapter 'reference' is named twice"),
        (["verify", "reference", "--resume"], "--resume needs --out"),
        (["verify", "reference", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["run", "speed", "reference"], "unknown measuring suite 'speed'"),
        (["run", "fragmentation", "reference", "--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["estimate", "llama-9"], "unknown model 'llama-9'"),
        (["replay", "/nowhere.json"], "/nowhere.json does not exist"),
        (["report", "/nowhere", "--out", "/tmp/x"], "is not a result folder"),
        (["leaderboard", "/nowhere", "--out", "/tmp/x"], "is not a result folder"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments, complaint, capsys):
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr()
    assert code == 2
    assert complaint in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_an_adapter_that_cannot_be_started_is_one_line_and_exit_3(tmp_path, capsys):
    source = (ROOT / "examples/paged_list.py").read_text()
    broken = {
        "raises.py": "raise OSError('no such device')",
        "lacks.py": source.replace("def begin", "def start"),
        "nonsense.py": source.replace("ManagerCapabilities()", "ManagerCapabilities(operations=frozenset({'fly'}))"),
        "undone.py": source.replace("ManagerCapabilities()", "ManagerCapabilities(operations=frozenset({'fork'}))"),
    }
    complaints = {
        "raises.py": "raised OSError: no such device on import",
        "lacks.py": "its manager has no 'begin', which CacheManager needs",
        "nonsense.py": "unknown manager operation 'fly'",
        "undone.py": "its manager has no 'fork', which Forks needs",
    }
    for name, text in broken.items():
        (tmp_path / name).write_text(text)
        assert main(["verify", f"{tmp_path / name}:Adapter"]) == 3
        shown = capsys.readouterr()
        assert complaints[name] in shown.err
        assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not valid JSON; is the file complete?"),
        (b'{"check": "lifecycle.manager", "case": {', "is not valid JSON; is the file complete?"),
        (b"\x80\x04\x95", "is not valid JSON"),
        (b"[1, 2]", "is not a counterexample"),
        (b'{"check": "x", "case": {}}', "field 'adapter' is missing"),
        (b"[" * 100_000, "is not valid JSON"),
    ],
)
def test_a_damaged_counterexample_is_one_line_and_exit_2(tmp_path, content, complaint, capsys):
    path = tmp_path / "counterexample.json"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert shown.err.count("\n") == 1


def test_a_counterexample_of_an_unknown_check_or_with_a_strange_case_is_refused(tmp_path, capsys):
    path = tmp_path / "counterexample.json"
    data = {"check": "lifecycle.nothing", "adapter": "reference", "version": "1", "config": {}, "seed": 0, "case": {}}
    path.write_text(json.dumps({**data, "message": ""}))
    assert main(["replay", str(path)]) == 2
    assert "there is no check 'lifecycle.nothing'" in capsys.readouterr().err
    path.write_text(json.dumps({**data, "message": "", "check": "lifecycle.manager", "case": {"operations": "rm -rf"}}))
    assert main(["replay", str(path)]) == 2
    assert "case" in capsys.readouterr().err


def test_verify_of_the_example_is_clean(tmp_path, capsys):
    assert main(["verify", EXAMPLE, "--quiet", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "no findings" in shown
    assert "lifecycle.manager" in shown
    assert (tmp_path / "out" / "index.html").is_file()


def test_a_fault_is_found_saved_and_replayed(tmp_path, capsys):
    assert main(["verify", leaking_adapter(tmp_path), "--json", "--quiet", "--out", str(tmp_path / "out")]) == 1
    records = json.loads(capsys.readouterr().out)
    failed = [record for record in records if record["verdict"] == "fail"]
    assert failed
    for record in failed:
        file = tmp_path / "out" / "counterexamples" / record["counterexample"]
        assert main(["replay", str(file)]) == 1
        assert "reproduces" in capsys.readouterr().out
        assert main(["replay", str(file), "--adapter", "reference"]) == 0
        assert main(["replay", str(file), "--adapter", EXAMPLE]) == 0
        capsys.readouterr()


def test_a_resumed_run_tells_its_findings_again(tmp_path, capsys):
    arguments = ["verify", leaking_adapter(tmp_path), "--suite", "lifecycle.drain", "--quiet"]
    arguments += ["--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    first = capsys.readouterr().out
    assert main([*arguments, "--resume"]) == 1
    assert capsys.readouterr().out == first
    assert "1 finding\n" in first


def test_a_measurement_that_is_finished_is_not_made_again(tmp_path, capsys):
    arguments = ["run", "fragmentation", EXAMPLE, "--quiet", "--json", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_json_goes_to_stdout_alone_and_progress_to_stderr():
    done = run("verify", EXAMPLE, "--json", "--suite", "lifecycle")
    assert done.returncode == 0
    assert {record["suite"] for record in json.loads(done.stdout)} == {"lifecycle"}
    quiet = run("verify", EXAMPLE, "--json", "--quiet", "--suite", "lifecycle")
    assert quiet.stderr == ""


def test_a_resumed_run_asks_only_what_is_missing(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["verify", EXAMPLE, "--quiet", "--suite", "lifecycle", "--out", out]) == 0
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    (tmp_path / "out" / "results.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    assert main(["verify", EXAMPLE, "--quiet", "--suite", "lifecycle", "--out", out]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main(["verify", EXAMPLE, "--quiet", "--suite", "lifecycle", "--out", out, "--resume"]) == 0
    again = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert again[: len(lines) - 1] == lines[:-1]
    assert len(again) == len(lines)


def test_an_interrupt_ends_with_130_and_keeps_what_was_made(tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench", "verify", EXAMPLE, "--budget", "1m", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - ignored in the background
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        (out / "results.jsonl").exists() and (out / "results.jsonl").read_text()
    ):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in shown
    assert "interrupted" in shown
    assert (out / "results.jsonl").read_text()
    assert (out / "index.html").is_file()


@pytest.mark.benchmark(group="start-up")
def test_help_answers_fast(benchmark):
    benchmark.pedantic(lambda: run("--help"), rounds=5, warmup_rounds=1)
    assert statistics.median(benchmark.stats.stats.data) < 1.0, "a bound against importing torch, not the figure itself"
