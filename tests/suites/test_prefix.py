"""The prefix-sharing checks kill caches with one fault each, and leave correct ones alone."""

from __future__ import annotations

import json

import pytest

from kvbench.budget import BUDGETS, effort
from kvbench.checks import skip_reason
from kvbench.codec import decode, encode
from kvbench.faults.controls import NeverCaches
from kvbench.faults.namespaces import IgnoresNamespaces
from kvbench.search import judge, search
from kvbench.subject import REFERENCE, Subject
from kvbench.suites import prefix
from kvbench.suites.lifecycle.operations import Script
from kvbench.suites.prefix.eviction import Eviction, one_after_the_other, surviving
from kvbench.suites.prefix.hits import least_hit
from kvbench.suites.prefix.saved import memory_saved

CHECKS = {check.name.partition(".")[2]: check for check in prefix.CHECKS}
QUICK = effort(BUDGETS["quick"], seed=0, checks=1)

FAULTS = (
    ("LosesHitsOfFreedSequences", "complete"),
    ("CachesNoDecodedBlocks", "complete"),
    ("ResetsOnlyIdleBlocks", "reset"),
)
"""A cache with one fault, and the check that finds it."""


@pytest.mark.parametrize(("fault", "check"), FAULTS)
def test_a_cache_with_one_fault_is_killed(made, fault, check):
    subject = made.subject(getattr(made, fault))
    outcome = search(CHECKS[check], subject, QUICK)
    assert outcome.failure is not None, f"{fault} survived {outcome.cases} cases"
    assert judge(CHECKS[check], Subject(REFERENCE), outcome.failure.case) is None
    if isinstance(outcome.failure.case, Script):
        assert len(outcome.failure.case.operations) <= 8


@pytest.mark.parametrize("check", CHECKS)
def test_the_reference_is_clean(check):
    outcome = search(CHECKS[check], Subject(REFERENCE), QUICK)
    assert outcome.failure is None
    assert outcome.cases > 20


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_asked_of_a_manager_without_a_cache(made, check):
    subject = made.subject(NeverCaches, prefix_caching=False)
    assert skip_reason(CHECKS[check], subject) == "prefix caching is not declared"


def test_a_case_survives_json(made):
    failure = search(CHECKS["namespaces"], made.subject(IgnoresNamespaces), QUICK).failure
    case = CHECKS["namespaces"].case_type
    assert decode(case, json.loads(json.dumps(encode(failure.case))), "case") == failure.case


@pytest.mark.parametrize(("length", "least"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 0), (9, 8)])
def test_a_full_last_block_and_one_more_may_be_held_back(length, least):
    assert least_hit(length, 4) == least


def test_the_model_gives_up_what_was_used_longest_ago_last_blocks_first():
    prompts, turns = ((1, 1), (2, 2), (3,)), one_after_the_other((0, 1, 2, 0))
    assert surviving(Eviction(2, prompts, turns, evicted=4)) == [1, 0, 0]
    held = one_after_the_other((0, 1, 2, 0), held=(1,))
    assert surviving(Eviction(2, prompts, held, evicted=1)) == [2, 2, 0]


def test_the_model_knows_shared_beginnings_and_runs_that_overlap():
    assert surviving(Eviction(2, ((1, 1), (2,), (1, 3)), one_after_the_other((0, 1, 2)), evicted=2)) == [1, 0, 2]
    assert surviving(Eviction(2, ((1, 1), (2, 2)), (0, 1, ~1, ~0), evicted=2)) == [2, 0]


def test_what_sharing_saves_is_counted_in_blocks():
    rows = memory_saved(Subject(REFERENCE), requests=4, shared=64, own=16, block_size=16)
    taken = {row.metric: row.value for row in rows}
    assert taken["blocks_alone"] == 4 * 5
    assert taken["blocks_shared"] == 4 + 4 * 1
    assert taken["memory_saved"] == pytest.approx(1 - 8 / 20)
