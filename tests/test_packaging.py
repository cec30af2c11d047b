"""What reaches an installation, and what starting kvbench costs."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("reference", "kernels", "suites", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HEAVY = {"torch", "numpy", "pandas", "scipy", "transformers", "openvino", "triton"}


def loaded_by(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport json, sys; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_the_top_level_folder_under_another_name(room):
    link = ROOT / "kvbench" / room
    assert link.is_symlink()
    assert link.resolve() == ROOT / room


def test_kernels_does_not_hide_the_package_of_that_name():
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_with_modules_is_under_an_import_contract(room):
    if not list((ROOT / room).rglob("*.py")):
        pytest.skip(f"{room}/ has no modules yet")
    rules = PROJECT["tool"]["importlinter"]
    assert any(f"kvbench.{room}" in contract.get("source_modules", ()) for contract in rules["contracts"])
    assert (ROOT / room / "__init__.py").exists() or f"kvbench.{room}" in rules["root_packages"]


def test_bare_room_names_and_relative_imports_are_banned():
    imports = PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]
    assert imports["ban-relative-imports"] == "all"
    assert set(imports["banned-api"]) == set(ROOMS)


@pytest.mark.parametrize(
    "module", ["kvbench", "kvbench.interface", "kvbench.cli.main", "kvbench.registry", "kvbench.models"]
)
def test_starting_imports_nothing_heavy(module):
    assert not HEAVY & loaded_by(f"import {module}")


def test_the_pytest_plugin_imports_no_torch():
    """pytest and its other plugins are there in any case, so only what ours adds counts."""
    assert not HEAVY & (loaded_by("import pytest, kvbench.plugin") - loaded_by("import pytest"))


def test_constraints_pin_every_direct_requirement_but_not_beyond():
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            pinned[name] = version
    project = PROJECT["project"]
    listed = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    direct = {re.split(r"[<>=\[ ]", requirement)[0] for requirement in listed} - {"kvbench"}
    assert set(pinned) == direct
    assert pinned["torch"] == "2.13.0"


def test_the_commands_of_the_readme_are_one_line_each():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert [block.count("\n") for block in blocks] == [1, 1]
    assert all(block.startswith("python3 -m venv ") for block in blocks)


def test_entry_points_name_what_exists():
    scripts = PROJECT["project"]["scripts"]
    plugins = PROJECT["project"]["entry-points"]["pytest11"]
    for name, value in {**scripts, **plugins}.items():
        metadata.EntryPoint(name, value, "kvbench").load()
