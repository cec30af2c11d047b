"""Cache managers over the life of sequences: content and bookkeeping, by scripts that a state machine generates.

Who makes operations (`machine`), who applies them (`client`), where rows rest (`store`) and who judges (`judge`) are
four places; `model` says what every sequence must read.
"""

from __future__ import annotations

from kvbench.budget import Effort
from kvbench.checks import Check, Outcome
from kvbench.subject import Subject
from kvbench.suites.lifecycle.drain import search_drain
from kvbench.suites.lifecycle.exact_fit import ExactFit, judge_exact_fit, search_exact_fit
from kvbench.suites.lifecycle.machine import hunt_for
from kvbench.suites.lifecycle.operations import CacheShape, Script
from kvbench.suites.lifecycle.rules import block_sizes
from kvbench.suites.lifecycle.run import judge_script

MANAGER_RUNS = 8
"""Runs of the state machine that one example of a budget is worth, where a step costs no kernel."""


def kernel_shape(subject: Subject) -> CacheShape:
    """A small cache with many query heads a KV head, so that one call reads many rows."""
    ratio = subject.kernel.gqa_ratios.among((32, 16, 8, 4, 2, 1))[0]
    return CacheShape(ratio, 1, subject.kernel.head_dims.among((64, 128, 80, 96, 256, 32, 16))[0])


def _always(subject: Subject) -> str | None:  # noqa: ARG001
    return None


def _needs_a_common_block_size(subject: Subject) -> str | None:
    if block_sizes(subject, joined=True):
        return None
    return (
        f"no block size is offered by both the manager ({subject.manager.block_sizes}) and the kernel "
        f"({subject.kernel.block_sizes})"
    )


def _needs_paging(subject: Subject) -> str | None:
    return None if subject.manager.paged else "the manager reserves whole sequences; what it needs is not stated"


def _needs_refusals(subject: Subject) -> str | None:
    return subject.limit("misuse")


def _search_manager(subject: Subject, effort: Effort) -> Outcome:
    return hunt_for(subject, effort, runs=MANAGER_RUNS)


def _search_joined(subject: Subject, effort: Effort) -> Outcome:
    return hunt_for(subject, effort, kernel_shape(subject))


def _search_misuse(subject: Subject, effort: Effort) -> Outcome:
    return hunt_for(subject, effort, misuse=True, runs=MANAGER_RUNS // 2)


CHECKS: tuple[Check, ...] = (
    Check(
        name="lifecycle.manager",
        about="every sequence reads the rows it wrote, inherited or hit, and no block is lost or used twice",
        half="manager",
        case_type=Script,
        judge=judge_script,
        requires=_always,
        search=_search_manager,
    ),
    Check(
        name="lifecycle.exact_fit",
        about="an operation takes exactly the blocks that it needs, and is refused only where they are not free",
        half="manager",
        case_type=ExactFit,
        judge=judge_exact_fit,
        requires=_needs_paging,
        search=search_exact_fit,
    ),
    Check(
        name="lifecycle.drain",
        about="a sequence gives everything back in whatever state it is let go of",
        half="manager",
        case_type=Script,
        judge=judge_script,
        requires=_always,
        search=search_drain,
    ),
    Check(
        name="lifecycle.misuse",
        about="calls that no caller should make are refused or change nothing",
        half="manager",
        case_type=Script,
        judge=judge_script,
        requires=_needs_refusals,
        search=_search_misuse,
    ),
    Check(
        name="lifecycle.joined",
        about="every sequence reads its own rows through the attention kernel, whatever the manager does to blocks",
        half="joined",
        case_type=Script,
        judge=judge_script,
        requires=_needs_a_common_block_size,
        search=_search_joined,
    ),
)
