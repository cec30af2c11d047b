"""What the tests of the suites share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def made():
    """The managers made for these tests. Test folders are no packages, so the file is loaded by its place."""
    spec = importlib.util.spec_from_file_location("faulty_managers", Path(__file__).with_name("faulty_managers.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
