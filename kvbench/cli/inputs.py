"""Reading what several commands take: settings and the choice of checks."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.checks import Check
from kvbench.errors import UsageError
from kvbench.names import closest


def parse_config(pairs: Sequence[str]) -> dict[str, str]:
    """["precision=f16"] as {"precision": "f16"}. Raises `UsageError`."""
    config: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key or not value:
            raise UsageError(f"--config {pair!r} is not KEY=VALUE, such as precision=f16")
        if key in config:
            raise UsageError(f"--config gives {key!r} twice")
        config[key] = value
    return config


def choose_checks(checks: Sequence[Check], names: Sequence[str]) -> list[Check]:
    """The checks of the suites, or with the names, that were asked for (all if none were). Raises `UsageError`."""
    if not names:
        return list(checks)
    suites = dict.fromkeys(check.suite for check in checks)
    known = [*suites, *(check.name for check in checks)]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown suite or check {name!r}{closest(name, known)}; suites: {', '.join(suites)}")
    return [check for check in checks if check.name in names or check.suite in names]
