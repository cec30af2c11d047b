"""What a run was made on, for `environment.json`."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from kvbench.counterexample import versions


def describe() -> dict[str, Any]:
    """CPU or GPU, memory, operating system, versions, threads, git revision. Bytes for memory; times in UTC."""
    import psutil
    import torch

    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
        "last_level_cache_bytes": last_level_cache(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "os": f"{platform.system()} {platform.release()}",
        "threads": torch.get_num_threads(),
        "load": _load(),
        "versions": versions(),
        "revision": _git_revision(),
    }


def last_level_cache() -> int:
    """Size in bytes of the largest CPU cache, 32 MiB where the system does not say."""
    sizes = [_parse_size(path.read_text()) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max([*sizes, 0]) or 32 * 2**20


def _parse_size(text: str) -> int:
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    text = text.strip()
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text or 0)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _git_revision() -> str | None:
    """Revision of the checkout that kvbench runs from; None where it was installed."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
