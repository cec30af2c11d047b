"""Values with their units, as people read them."""

from __future__ import annotations

import math


def format_bytes(value: float) -> str:
    """Bytes in binary units: 1536 -> "1.5 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:,.4g} TiB"


def format_count(value: float) -> str:
    """A number to three digits with a decimal prefix: 48210 -> "48.2k"."""
    if value and abs(value) < 1:
        return f"{value:.3g}"
    for prefix in ("", "k", "M"):
        if abs(value) < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:,.3g}G"


def format_seconds(value: float) -> str:
    """Seconds to three digits in a unit that suits them: 0.00123 -> "1.23 ms"."""
    if abs(value) >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if abs(value) >= 1e-3 else f"{value * 1e6:.3g} \N{MICRO SIGN}s"


def format_value(value: float | None, unit: str) -> str:
    """A measured value in its unit: ratios as percentages, bandwidths in GB/s, bytes in binary units."""
    if value is None or not math.isfinite(value):
        return ""
    if unit == "ratio":
        return f"{value:.1%}"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes/s":
        return f"{value / 1e9:.2f} GB/s"
    return f"{format_count(value)} {unit}".strip()
