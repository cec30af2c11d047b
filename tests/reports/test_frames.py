import json
from pathlib import Path

import pytest

from kvbench.errors import InputError, UsageError
from kvbench.reports.frames import load
from kvbench.reports.page import write_report


def test_checks_and_measurements_are_frames(compared_folder):
    frames = load([compared_folder])
    assert set(frames.checks["adapter"]) == {"reference", "torch", "contiguous", "glacier"}
    assert len(frames.checks) == 4 * 17
    assert "effective_utilisation" in set(frames.measurements["metric"])
    assert len(frames.sources[0].counterexamples) == 2


def test_the_last_answer_to_a_question_counts(make, folder):
    frames = load([folder(make.check("a", "s.p", "fail", reason="first"), make.check("a", "s.p", "pass"))])
    assert list(frames.checks["verdict"]) == ["pass"]


def test_a_folder_named_twice_is_read_once(make, folder):
    path = folder(make.check("a", "s.p"))
    assert len(load([path, path / "..", path][::2]).checks) == 1


def test_the_same_adapter_in_two_folders_keeps_two_names(make, folder):
    one, two = folder(make.check("a", "s.p"), name="one"), folder(make.check("a", "s.p"), name="two")
    assert list(load([one, two]).checks["who"]) == ["a (one)", "a (two)"]


def test_versions_tell_an_adapter_from_itself(make, folder):
    one, two = folder(make.check("a", "s.p"), name="one"), folder(make.check("a", "s.p", version="2.0"), name="two")
    assert list(load([one, two]).checks["who"]) == ["a 1.0", "a 2.0"]


def test_machines_that_were_not_recorded_are_not_the_same(make, folder):
    one, two = (folder(make.check("a", "s.p"), name=name, environment={}) for name in ("one", "two"))
    first, second = load([one, two]).sources
    assert first.machine != second.machine


def test_no_folder_is_wrong_usage():
    with pytest.raises(UsageError, match="no result folder"):
        load([])


DAMAGED = {
    "not a result folder": lambda path: (path / "results.jsonl").unlink(),
    "not a JSON record": lambda path: (path / "results.jsonl").write_text("{\n{}\n"),
    "field 'suite' is missing": lambda path: (path / "results.jsonl").write_text("{}\n"),
    "newer than this kvbench": lambda path: (path / "results.jsonl").write_text('{"schema": 99}\n'),
    "cannot read": lambda path: (path / "results.jsonl").write_bytes(b"\xff\xfe\x00\x01"),
    "fits into a float": lambda path: (path / "results.jsonl").write_text(
        json.dumps({"suite": "s", "adapter": "a", "version": "", "metric": "m", "value": 10**400}) + "\n"
    ),
    "environment.json is not valid JSON": lambda path: (path / "environment.json").write_text('{"cpu":'),
    "expected an object": lambda path: (path / "environment.json").write_text("[1]"),
    "a-s.p.json is not valid JSON": lambda path: (path / "counterexamples/a-s.p.json").write_text('{"check": "s.p", '),
    "is not a counterexample": lambda path: (path / "counterexamples/a-s.p.json").write_text("[]"),
}


@pytest.mark.parametrize("told", DAMAGED)
def test_a_damaged_folder_is_refused_in_one_line(make, folder, told, tmp_path):
    failed = make.check("a", "s.p", "fail", reason="wrong", counterexample="a-s.p.json")
    path = folder(failed, counterexamples=[("a-s.p", make.counterexample("s.p", "a"))])
    load([path])
    DAMAGED[told](path)
    with pytest.raises(InputError, match=told) as raised:
        write_report([path], tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_line_that_a_killed_run_left_torn_is_passed_over(make, folder):
    path = folder(make.check("a", "s.p"))
    with (path / "results.jsonl").open("a") as file:
        file.write('{"suite": "s", "ada')
    assert len(load([path]).checks) == 1


@pytest.mark.parametrize(
    "name", ["../secret.json", "/etc/passwd", "..", "a/b.json", "x.json\n", ".hidden.json", "x.txt"]
)
def test_a_counterexample_is_never_looked_for_elsewhere(make, folder, name):
    path = folder(make.check("a", "s.p", "fail", reason="wrong", counterexample=name))
    (path / "secret.json").write_text(json.dumps({"check": "s", "case": {}, "adapter": "SECRET"}))
    assert load([path]).sources[0].counterexamples == {}
    assert "SECRET" not in write_report([path], path).read_text()


def test_a_counterexample_that_is_gone_is_said_to_be(make, folder):
    path = folder(make.check("a", "s.p", "fail", reason="wrong", counterexample="a.json"))
    assert "Its counterexample is not in the folder." in write_report([path], path).read_text()


def test_reading_results_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, kvbench.reports.site; sys.exit('torch' in sys.modules or 'hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_values_that_no_chart_can_hold_leave_the_page_whole(make, folder):
    odd = [make.metric("throughput", "a", "decode_bandwidth", value, "bytes/s", workload=str(value)) for value in
           (float("inf"), float("nan"), 0.0, -1.0, 1e300, None)]  # fmt: skip
    odd.append(make.metric("throughput", "a", "relative_speed", 0.0, "x", params={"baseline": "b"}))
    odd.append(make.metric("prefix", "a", "token_hit_ratio", 7.0, "ratio", params={"pool_tokens": "many"}))
    odd.append(make.metric("prefix", "a", "token_hit_ratio", 0.5, "ratio", params={"pool_tokens": 10**40}))
    odd.append(make.metric("fragmentation", "a", "effective_utilisation", 40.0, "ratio", params={"block_size": None}))
    path = folder(*odd)
    page = write_report([path], path).read_text()
    assert "nan" not in page.replace("dominant", "")
    assert page.count("<svg") >= 4
