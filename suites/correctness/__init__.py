"""Checks of attention kernels: numbers, content and relations."""

from kvbench.checks import Check
from kvbench.suites.correctness import content, edges, numbers, relations

CHECKS: tuple[Check, ...] = (
    numbers.NUMBERS,
    numbers.OPTIONS,
    content.CANARY,
    relations.RELABELLING,
    relations.BATCH,
    relations.CHUNKS,
    relations.DEAD_MEMORY,
    relations.TABLES,
    content.WRITE_SET,
    edges.BOUNDS,
    edges.EMPTY,
    content.COPIES,
    edges.UNDECLARED,
)
