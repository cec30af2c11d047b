"""All checks and measurements, in the order in which reports show them."""

from kvbench.checks import Check
from kvbench.measurement import Measurement
from kvbench.suites import correctness, lifecycle, prefix
from kvbench.suites.growth import GROWTH
from kvbench.suites.throughput import MEASUREMENT as THROUGHPUT
from kvbench.suites.traces import FRAGMENTATION, PREFIX_SHARING

CHECKS: tuple[Check, ...] = (*correctness.CHECKS, *lifecycle.CHECKS, *prefix.CHECKS)
MEASUREMENTS: tuple[Measurement, ...] = (FRAGMENTATION, PREFIX_SHARING, THROUGHPUT, GROWTH)
