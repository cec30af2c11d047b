"""Prefix sharing: hits are complete while nothing is evicted, exact, isolated by namespace, and what they save."""

from __future__ import annotations

from kvbench.checks import Check
from kvbench.subject import Subject
from kvbench.suites.lifecycle.operations import Script
from kvbench.suites.lifecycle.run import judge_script
from kvbench.suites.prefix.complete import Complete, judge_complete, search_complete
from kvbench.suites.prefix.eviction import Eviction, judge_eviction, search_eviction
from kvbench.suites.prefix.namespaces import Isolation, judge_isolation, search_namespaces
from kvbench.suites.prefix.scripts import search_exact, search_unpublished
from kvbench.suites.prefix.withdrawn import Withdrawn, judge_withdrawn, search_reset


def needs_caching(subject: Subject) -> str | None:
    """Why prefix sharing cannot be asked of `subject`, or None."""
    return None if subject.manager.prefix_caching else "prefix caching is not declared"


def _needs_namespaces(subject: Subject) -> str | None:
    return needs_caching(subject) or (None if subject.manager.namespaces else "namespaces are not declared")


def _needs_an_order(subject: Subject) -> str | None:
    return needs_caching(subject) or (None if subject.manager.eviction else "no order of eviction is declared")


def _needs_reset(subject: Subject) -> str | None:
    declared = "reset" in subject.manager.operations
    return needs_caching(subject) or (None if declared else "reset is not declared")


CHECKS: tuple[Check, ...] = (
    Check(
        name="prefix-sharing.complete",
        about="while nothing is evicted, a prompt that was computed before is hit but for its last block",
        half="manager",
        case_type=Complete,
        judge=judge_complete,
        requires=needs_caching,
        search=search_complete,
    ),
    Check(
        name="prefix-sharing.exact",
        about="a hit never reaches past what two prompts have in common, wherever they part",
        half="manager",
        case_type=Script,
        judge=judge_script,
        requires=needs_caching,
        search=search_exact,
    ),
    Check(
        name="prefix-sharing.namespaces",
        about="no prompt is hit from another namespace, on any path, and every prompt is from its own",
        half="manager",
        case_type=Isolation,
        judge=judge_isolation,
        requires=_needs_namespaces,
        search=search_namespaces,
    ),
    Check(
        name="prefix-sharing.eviction",
        about="cached prefixes are given up in the declared order, a prefix after its continuations",
        half="manager",
        case_type=Eviction,
        judge=judge_eviction,
        requires=_needs_an_order,
        search=search_eviction,
    ),
    Check(
        name="prefix-sharing.reset",
        about="after a reset nothing from before it is hit, and what is computed then is",
        half="manager",
        case_type=Withdrawn,
        judge=judge_withdrawn,
        requires=_needs_reset,
        search=search_reset,
    ),
    Check(
        name="prefix-sharing.unpublished",
        about="aborted, rejected and uncommitted tokens are not hit in a later step",
        half="manager",
        case_type=Script,
        judge=judge_script,
        requires=needs_caching,
        search=search_unpublished,
    ),
)
