"""Medians with bootstrap intervals, paired ratios, and verdicts that claim no more than the data shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % bootstrap interval (Efron & Tibshirani 1993, percentile method)."""

    value: float
    low: float
    high: float
    samples: tuple[float, ...]


def median(samples: Sequence[float] | NDArray[np.float64], seed: int = 0) -> Estimate:
    """Median of `samples` with its interval. Raises `ValueError` for no samples."""
    data = np.asarray(samples, dtype=np.float64)
    if data.size == 0:
        raise ValueError("a median needs at least one sample")
    drawn = np.random.default_rng(seed).integers(0, data.size, size=(RESAMPLES, data.size))
    medians = np.median(data[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Estimate(float(np.median(data)), float(low), float(high), tuple(float(x) for x in data))


def paired_ratio(ours: Sequence[float], baseline: Sequence[float], seed: int = 0) -> Estimate:
    """Median over rounds of baseline time / our time: above 1 we are faster. Both lists hold the same rounds."""
    if len(ours) != len(baseline):
        raise ValueError(f"paired samples differ in number: {len(ours)} and {len(baseline)}")
    return median(np.asarray(baseline, dtype=np.float64) / np.asarray(ours, dtype=np.float64), seed)


Verdict = Literal["faster", "slower", "no difference"]


@dataclass(frozen=True)
class Comparison:
    """What a paired ratio allows to be said."""

    ratio: Estimate
    verdict: Verdict
    text: str


MINIMAL_EFFECT = 0.02
"""Differences below 2 % are not called differences, however sure they are: timer, placement and layout move as much."""


def compare(ours: Sequence[float], baseline: Sequence[float], seed: int = 0) -> Comparison:
    """Whether we are faster than the baseline: 'faster', 'slower' or 'no difference larger than x %'."""
    ratio = paired_ratio(ours, baseline, seed)
    if ratio.low > 1 + MINIMAL_EFFECT:
        return Comparison(ratio, "faster", f"faster, {ratio.value:.3g}x ({ratio.low:.3g} to {ratio.high:.3g})")
    if ratio.high < 1 / (1 + MINIMAL_EFFECT):
        return Comparison(ratio, "slower", f"slower, {ratio.value:.3g}x ({ratio.low:.3g} to {ratio.high:.3g})")
    bound = max(abs(ratio.low - 1), abs(ratio.high - 1), MINIMAL_EFFECT)
    return Comparison(ratio, "no difference", f"no difference larger than {np.ceil(bound * 100):.0f} %")


def noise_warning(samples: Sequence[float]) -> str | None:
    """A warning when the rounds of one contestant scatter so much that its figure deserves distrust."""
    data = np.asarray(samples, dtype=np.float64)
    if data.size < 3:
        return "fewer than 3 rounds"
    spread = float(np.subtract(*np.percentile(data, [75, 25])) / np.median(data))
    return f"noisy: the middle half of the rounds spans {spread:.0%} of their median" if spread > 0.25 else None
