"""The catalogue is alive and well-formed, and `kvbench faults` tells what the checks make of it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.budget import BUDGETS
from kvbench.cli import faults as command
from kvbench.cli.main import main
from kvbench.faults.adapters import with_manager
from kvbench.faults.catalogue import classes, controls, faults
from kvbench.faults.fault import Fault, alive
from kvbench.faults.matrix import hold
from kvbench.faults.page import render
from kvbench.reference.manager import ReferenceManager
from kvbench.registry import BUILT_IN, load_adapter
from kvbench.suites.catalogue import CHECKS

ROOT = Path(__file__).resolve().parents[2]
FAULTS = {fault.id: fault for fault in faults()}
MANAGER = [check for check in CHECKS if check.name == "lifecycle.manager"]


def held(entry, budget=BUDGETS["quick"]):
    return hold(entry, MANAGER, budget, 0, exhaustive=False)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows_under_its_trigger_and_not_without_it(name):
    assert alive(FAULTS[name])


def test_ids_are_unique_and_belong_to_a_class():
    known = [entry.id for entry in classes()]
    assert len(known) == len(set(known))
    assert len(FAULTS) == len(faults())
    for fault in faults():
        assert re.fullmatch(r"[A-Z]+\d+[a-z]", fault.id)
        assert fault.adapter.name == fault.id
    assert {fault.class_id for fault in faults()} == set(known)


def test_reports_are_public_identifiers():
    for known in classes():
        assert known.reports
        for report in known.reports:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{6,40})", report), report


def test_there_are_ten_controls_or_more():
    assert len(controls()) >= 10


def test_nothing_in_the_suites_names_a_fault_an_engine_or_a_control():
    engines = {entry.name for entry in BUILT_IN} - {"reference", "torch", "contiguous"}
    names = engines | {"vllm", "sglang", "flashinfer", "llama.cpp"} | {control.id for control in controls()}
    ids = re.compile(r"\b(" + "|".join(FAULTS) + r")\b")
    for path in (ROOT / "suites").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not ids.search(text), path
        for name in names:
            assert not re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE), (path, name)


def test_a_fault_is_an_adapter_that_can_be_named(capsys):
    assert load_adapter("fault:A1c").name == "A1c"
    assert main(["verify", "fault:A1c", "--suite", "lifecycle.manager", "--quiet"]) == 1
    assert "A1c" in capsys.readouterr().out
    assert main(["verify", "fault:nothing"]) == 2
    assert "there is no fault 'nothing'" in capsys.readouterr().err


def test_the_command_tells_what_found_what(capsys):
    assert main(["faults", "--only", "A1c", "--only", "K2e", "--budget", "quick", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["summary"]["total"] == told["summary"]["killed"] == 2
    assert told["summary"]["survived"] == told["summary"]["false_alarms"] == []
    first = told["faults"][0]
    assert {"id", "class", "component", "alive", "killed", "check", "seconds", "operations", "message"} <= first.keys()
    assert (first["id"], first["class"], first["alive"], first["killed"]) == ("A1c", "A1", True, True)


def test_an_unknown_fault_is_one_clear_line(capsys):
    assert main(["faults", "--only", "A1Z"]) == 2
    assert capsys.readouterr().err.startswith("kvbench: there is no fault 'A1Z' (did you mean")


def test_faults_are_listed(capsys):
    assert main(["list", "faults", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows][: len(FAULTS)] == list(FAULTS)


def test_a_fault_that_nothing_finds_survives_and_is_not_alive():
    entry = Fault("A1a", "does nothing wrong", with_manager("A1a", ReferenceManager), lambda subject: None)
    trial = held(entry, replace(BUDGETS["quick"], examples=2, steps=3))
    assert (trial.alive, trial.killed, trial.as_it_should_be) == (False, False, False)
    assert command.summarise([trial])["survived"] == command.summarise([trial])["not_alive"] == ["A1a"]


def test_a_check_that_accuses_the_clean_adapter_is_an_error():
    trial = held(replace(FAULTS["A5a"], clean=FAULTS["A5a"].adapter))
    assert "accuses the clean adapter, too" in trial.error
    assert not trial.as_it_should_be


def test_a_control_that_fails_is_a_false_alarm():
    control = replace(controls()[0], adapter=FAULTS["A5a"].adapter)
    trial = held(control)
    assert trial.killed
    assert not trial.as_it_should_be
    assert command.summarise([trial])["false_alarms"] == [control.id]


def test_the_page_is_up_to_date():
    run = json.loads((ROOT / "docs" / "faults.json").read_text(encoding="utf-8"))
    assert {entry["id"] for entry in run["faults"]} == set(FAULTS)
    assert (ROOT / "docs" / "faults.md").read_text(encoding="utf-8") == render(run)
