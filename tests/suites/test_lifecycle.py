"""The lifecycle checks kill managers with one fault each, leave correct ones alone, and their scripts replay."""

from __future__ import annotations

import json

import pytest

from kvbench.budget import BUDGETS, effort
from kvbench.checks import Violation, skip_reason
from kvbench.codec import decode, encode
from kvbench.faults.controls import HitsBeforeTheWrite
from kvbench.faults.forks import OwesNoCopies, WritesIntoSharedTails
from kvbench.interface import GroupSpec, PoolSpec
from kvbench.registry import load_adapter
from kvbench.search import judge, search
from kvbench.subject import REFERENCE, Subject
from kvbench.suites import lifecycle
from kvbench.suites.lifecycle.client import Client
from kvbench.suites.lifecycle.model import Model
from kvbench.suites.lifecycle.operations import (
    Begin,
    CacheShape,
    Draft,
    EndStep,
    Extend,
    Fork,
    Free,
    Preempt,
    Reset,
    Resume,
    Script,
    SwapIn,
    SwapOut,
)
from kvbench.suites.lifecycle.run import run
from kvbench.suites.lifecycle.store import IntegerStore, Work

CHECKS = {check.name.partition(".")[2]: check for check in lifecycle.CHECKS}
QUICK = effort(BUDGETS["quick"], seed=0, checks=1)

FAULTS = {
    "NeedsOneBlockMore": "exact_fit",
    "TakesOneBlockMore": "exact_fit",
    "SwapsInWithoutCopies": "manager",
    "ResetsOnlyIdleBlocks": "manager",
    "PreemptKeepsFirstBlock": "drain",
    "ClaimsToHaveResumed": "manager",
    "JoinsCachedBlockUncounted": "manager",
    "CountsMoreHitsThanQueries": "manager",
    "ForgetsItsCountersAtReset": "manager",
    "EvictsBlocksInUse": "manager",
    "BeginsTwice": "misuse",
    "CommitsBeyondTheEnd": "misuse",
}
"""A manager with one fault, and the check that finds it."""


def searched(name, subject, effort=QUICK):
    check = CHECKS[name]
    assert skip_reason(check, subject) is None
    return search(check, subject, effort)


@pytest.mark.parametrize(("fault", "check"), FAULTS.items())
def test_a_manager_with_one_fault_is_killed_by_a_short_script(made, fault, check):
    subject = made.subject(getattr(made, fault))
    outcome = searched(check, subject)
    assert outcome.failure is not None, f"{fault} survived {outcome.cases} cases: {outcome.reached}"
    assert judge(CHECKS[check], subject, outcome.failure.case) is not None
    assert judge(CHECKS[check], Subject(REFERENCE), outcome.failure.case) is None
    if isinstance(outcome.failure.case, Script):
        assert len(outcome.failure.case.operations) <= 9


@pytest.mark.parametrize("check", ["manager", "exact_fit", "drain", "misuse", "joined"])
def test_the_reference_is_clean(check):
    assert searched(check, Subject(REFERENCE)).failure is None


def test_blocks_shared_within_the_step_are_legal_where_aborts_are_not_declared(made):
    operations = made.ReferenceAdapter.capabilities.manager.operations - {"abort", "preempt", "reset", "truncate"}
    subject = made.subject(HitsBeforeTheWrite, operations=operations - {"truncate_accepted"})
    twins = Script(PoolSpec(8, 2), (Begin("a", (1,) * 5), Begin("b", (1,) * 5), EndStep()))
    assert run(subject, twins).events[1].answer.cached == 4


def test_undeclared_operations_are_never_asked_for(made):
    class Strict(made.ReferenceManager):
        def fork(self, parent, child):
            raise AssertionError("fork is not declared")

        swap_out = swap_in = preempt = resume = reset = truncate = fork

    assert searched("manager", made.subject(Strict, operations=frozenset())).failure is None


EVERYTHING = (
    Begin("a", (1,) * 9, "blue"),
    EndStep(4),
    EndStep(),
    Begin("b", (1,) * 9, "blue"),
    EndStep(),
    Fork("b", "c"),
    Extend("b", (2,)),
    Extend("c", (3,)),
    EndStep(),
    Draft("c", (1, 1, 1), 1),
    EndStep(),
    SwapOut("c"),
    EndStep(),
    SwapIn("c"),
    EndStep(),
    Preempt("b"),
    Resume("b"),
    EndStep(),
    Reset(),
    Begin("d", (1,) * 9),
    EndStep(),
    Free("a"),
)


def test_a_script_survives_json_and_replays_identically():
    script = Script(PoolSpec(9, 4, (GroupSpec(),), host_blocks=8), EVERYTHING)
    again = decode(Script, json.loads(json.dumps(encode(script))), "case")
    assert again == script
    subject = Subject(REFERENCE)
    first, second = run(subject, script), run(subject, again)
    assert first.story("") == second.story("")
    assert [event.view for event in first.events] == [event.view for event in second.events]


def test_a_violation_tells_the_story_and_marks_the_block(made):
    script = Script(
        PoolSpec(4, 2), (Begin("a", (1,)), EndStep(), Fork("a", "b"), Extend("a", (2,)), Extend("b", (3,)), EndStep())
    )
    with pytest.raises(Violation) as caught:
        run(made.subject(WritesIntoSharedTails), script)
    violation = caught.value
    assert "position 1 of a" in violation.message
    assert "position 1 of b" in violation.message
    assert violation.story[1:4] == (
        "begin a with 1 tokens (1) -> 0 cached",
        "end the step -> writes a 0..0",
        "fork a into b",
    )
    last = violation.timeline.steps[-1]
    assert last.bad
    assert last.owners[str(last.bad[0])] == ("a", "b")


def test_what_does_not_apply_is_left_out():
    operations = (Extend("a", (1,)), Free("a"), Begin("a", (1,)), EndStep(), Begin("a", (1,)), Resume("a"))
    world = run(Subject(REFERENCE), Script(PoolSpec(4, 2), operations))
    assert [event.operation for event in world.events][:2] == [Begin("a", (1,)), EndStep()]


def test_the_same_seed_finds_the_same_case(made):
    found = [searched("manager", made.subject(OwesNoCopies)).failure.case for _ in range(2)]
    assert found[0] == found[1]


def test_the_integer_store_tells_what_was_read_instead():
    spec = PoolSpec(4, 2)
    model = Model(spec)
    a, b = model.begin("a", (1, 2), None, 0), model.begin("b", (3, 4), None, 0)
    memory = IntegerStore(spec, model.tell)
    works = [Work(seq.name, seq.rows, 0, 2, (0,), ([2],)) for seq in (a, b)]
    wrong = memory.carry_out(works, step=7)
    assert [(one.seq, one.position, one.block, one.words) for one in wrong] == [
        ("a", 0, 2, "position 0 of b, written in step 7")
    ]
    unwritten = memory.carry_out([Work("a", a.rows, 2, 2, (0,), ([0],))], step=8)
    assert unwritten[0].words == "a row that was never written"


class ReadsOneRowTooMany:
    """The reference kernel, except that every context takes in one stale row of its last block."""

    def __new__(cls):
        from dataclasses import replace

        from kvbench.reference.kernel import ReferenceKernel

        class Kernel(ReferenceKernel):
            def attend(self, cache, batch):
                size = cache.spec.block_size
                longer = [min(n + 1, -(-n // size) * size) for n in batch.seq_lens.tolist()]
                for keys in (*cache.keys, *cache.values):
                    keys.nan_to_num_(nan=0.0)
                stretched = batch.seq_lens.new_tensor(longer)
                return super().attend(cache, replace(batch, seq_lens=stretched))

        return Kernel()


def test_a_kernel_that_reads_a_row_too_many_is_found_by_its_indifferent_head(made):
    from dataclasses import replace

    class Adapter:
        name, version, about = "made for a test", "0", "made for a test"
        capabilities = replace(
            REFERENCE.capabilities,
            manager=None,
            kernel=replace(REFERENCE.capabilities.kernel, operations=frozenset({"attend", "copy_blocks"})),
        )

        def kernel(self, config):
            return ReadsOneRowTooMany()

    outcome = searched("joined", Subject(Adapter()))
    assert outcome.failure is not None


@pytest.mark.slow
def test_pages_that_an_engine_still_maps_to_a_freed_row_are_found():
    outcome = searched("joined", Subject(load_adapter("flex")))
    assert outcome.failure is not None
    script = outcome.failure.case
    assert any(isinstance(operation, Free) for operation in script.operations)
    assert len(script.operations) <= 6
    assert judge(CHECKS["joined"], Subject(REFERENCE), script) is None


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_the_joined_store_reads_back_what_it_wrote(heads):
    script = Script(PoolSpec(9, 4), EVERYTHING[:9], CacheShape(heads, 1, 64))
    run(Subject(REFERENCE), script)


def test_operations_do_not_reach_a_manager_that_a_caller_may_not_ask(made):
    model = Model(PoolSpec(4, 2))
    manager = Subject(REFERENCE).new_manager(model.spec)
    client = Client(manager, model, IntegerStore(model.spec, model.tell), frozenset({"preempt"}), namespaces=False)
    assert not client.applies(Begin("a", (1,), "red"))
    assert not client.applies(Reset())
    assert client.applies(Begin("a", (1,)))
    client.apply(Begin("a", (1,)), lambda view, copies: None)
    assert not client.applies(Free("a")), "the step is open and no abort is declared"
    assert not client.applies(Draft("a", (1,), 0))
