"""How fast a cache is, against the machine's own memory bandwidth: kernels and managers, each only once it is right."""

from kvbench.suites.throughput.measure import MEASUREMENT

__all__ = ["MEASUREMENT"]
