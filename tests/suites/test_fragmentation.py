from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.adapters.contiguous import ContiguousAdapter, ContiguousManager
from kvbench.errors import OutOfBlocks
from kvbench.interface import ManagerCapabilities, PoolSpec, Sizes
from kvbench.reference.contiguous import reserve_max
from kvbench.reference.manager import ReferenceManager
from kvbench.suites.fragmentation import (
    ManagedPool,
    Serving,
    contiguous_policies,
    measure_fragmentation,
    measure_policies,
)
from kvbench.suites.serving import Usage, serve
from kvbench.workloads import Request, Trace


def paged(blocks, block_size):
    return ManagedPool(ReferenceManager(PoolSpec(blocks, block_size, prefix_caching=False)), block_size, block_size)


@dataclass
class Slab:
    """Slots handed out in one run, each sequence's final length (or `always`) at once; the first run that fits."""

    slots: int
    always: int | None = None
    taken_runs: dict = field(default_factory=dict)
    growth: int = 1
    unit: int = 1

    def free_slots(self):
        return self.slots - sum(size for _, size in self.taken_runs.values())

    def wanted(self, tokens, final):
        return self.always or final

    def admit(self, seq, tokens, final):
        size = self.wanted(tokens, final)
        start = 0
        for taken, length in sorted(self.taken_runs.values()):
            if start + size <= taken:
                break
            start = taken + length
        if start + size > self.slots:
            raise OutOfBlocks(seq)
        self.taken_runs[seq] = (start, size)

    def grow(self, seq, tokens, added):
        raise AssertionError("all slots were there from the start")

    def release(self, seq):
        del self.taken_runs[seq]


def requests(*lengths, arrivals=None):
    times = arrivals or [0.0] * len(lengths)
    return [Request(at, prompt, output) for at, (prompt, output) in zip(times, lengths, strict=True)]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_prompts_of_every_length_up_to_a_block_waste_half_of_it_less_half_a_token(block_size):
    usage = serve(paged(64, block_size), requests(*((length, 0) for length in range(1, block_size + 1))), 64)
    assert usage.steps == 1
    assert usage.taken == block_size * block_size
    assert usage.held == block_size * (block_size + 1) // 2
    assert usage.reserved == 0


def test_a_sequence_takes_a_block_in_the_step_that_writes_its_first_token():
    # Held 3, 4 | 5, 6, 7, 8 | 9 of 4, 4 | 8, 8, 8, 8 | 12 slots.
    usage = serve(paged(8, 4), requests((3, 6)), 8)
    assert (usage.steps, usage.held, usage.taken) == (7, 42, 52)
    assert usage.finished == 1


def test_when_blocks_run_out_the_last_admitted_waits_and_is_computed_again():
    # Both hold 4 of 4 slots; in step 1 the second gives way, and begins again when the first has finished, in step 5.
    usage = serve(paged(2, 4), requests((4, 4), (4, 4)), 8)
    assert (usage.preemptions, usage.recomputed, usage.finished, usage.refused) == (1, 4, 2, 0)
    assert (usage.steps, usage.running) == (10, 2 + 4 + 5)
    assert usage.held == 8 + (5 + 6 + 7 + 8) + (4 + 5 + 6 + 7 + 8)
    assert usage.taken == 8 + 4 * 8 + 4 + 4 * 8


def test_requests_that_never_fit_are_refused_and_the_others_served():
    usage = serve(paged(2, 4), requests((9, 0), (4, 5), (4, 1)), 8)
    assert (usage.refused, usage.finished) == (2, 1)


def test_no_more_sequences_run_than_are_allowed():
    usage = serve(paged(64, 4), requests((4, 0), (4, 0), (4, 0)), 1)
    assert (usage.steps, usage.running) == (3, 3)


def test_time_in_which_nobody_has_arrived_does_not_count():
    usage = serve(paged(64, 4), requests((4, 0), (4, 0), arrivals=[0.0, 10.0]), 8, step_seconds=0.5)
    assert (usage.steps, usage.held) == (2, 8)


def test_slots_for_later_tokens_are_reserved_and_those_for_none_are_not():
    # 10 slots for a sequence of 2, 3, 4 and at last 5 tokens: 3, 2, 1, 0 reserved, 5 never used.
    usage = serve(Slab(20, always=10), requests((2, 3)), 8)
    assert (usage.held, usage.reserved, usage.taken) == (14, 6, 40)
    assert usage.taken - usage.held - usage.reserved == 4 * 5


def test_the_rest_of_the_block_being_filled_is_not_called_reserved():
    # Of 12 slots in blocks of 4, tokens 2, 3, 4 leave one in the second block for later; token 5 leaves none.
    usage = serve(Slab(40, always=12, unit=4), requests((2, 3)), 8)
    assert usage.reserved == 3


def test_free_slots_that_a_waiting_request_cannot_have_are_external_fragmentation():
    # In step 1 the outer of three runs of 4 are free, 8 slots, and nobody gets 6 in one run until the middle one ends.
    usage = serve(Slab(12), requests((4, 0), (3, 1), (4, 0), (6, 0)), 8)
    assert usage.fragmented == 8
    assert usage.finished == 4


def test_free_slots_are_no_fragmentation_while_they_are_too_few_for_the_waiting():
    usage = serve(Slab(10), requests((4, 1), (8, 0)), 8)
    assert usage.fragmented == 0


LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 20)), min_size=1, max_size=12)


@given(
    lengths=LENGTHS,
    blocks=st.integers(1, 12),
    block_size=st.sampled_from([1, 2, 4, 5]),
    max_sequences=st.integers(1, 5),
    saturated=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_passing_over_steps_counts_what_going_step_by_step_counts(
    lengths, blocks, block_size, max_sequences, saturated
):
    arrivals = sorted(at for _, _, at in lengths)
    served = [Request(float(at), prompt, out) for at, (prompt, out, _) in zip(arrivals, lengths, strict=True)]
    usage = serve(paged(blocks, block_size), served, max_sequences, None if saturated else 1.0)
    assert usage == StepByStep(served, blocks, block_size, max_sequences, saturated).run()


class StepByStep:
    """The loop's rules, with one token a call and one step at a time."""

    def __init__(self, served, blocks, block_size, max_sequences, saturated):
        self.manager = ReferenceManager(PoolSpec(blocks, block_size, prefix_caching=False))
        self.served, self.max_sequences, self.saturated = served, max_sequences, saturated
        self.count = dict.fromkeys(Usage.__dataclass_fields__, 0)
        self.ahead = list(range(len(served)))
        self.waiting, self.running = [], []  # [index, tokens]

    def run(self):
        step = 0
        while self.ahead or self.waiting or self.running:
            freed = self.finish()
            for one in [*self.running]:
                self.grow(one)
            arrived = self.arrive(step)
            if freed or arrived or not self.running:
                self.admit()
            if self.running:
                self.sample()
            step += 1
        return Usage(**self.count)

    def finish(self):
        done = [one for one in self.running if one[1] == self.served[one[0]].final_tokens]
        for one in done:
            self.running.remove(one)
            self.manager.free(str(one[0]))
            self.count["finished"] += 1
        return bool(done)

    def grow(self, one):
        while one in self.running:
            try:
                self.manager.extend(str(one[0]), [0])
            except OutOfBlocks:
                self.preempt_last()
            else:
                one[1] += 1
                return

    def preempt_last(self):
        last = self.running.pop()
        self.manager.free(str(last[0]))
        if not self.running:
            self.count["refused"] += 1
            return
        self.waiting.insert(0, last)
        self.count["preemptions"] += 1
        self.count["recomputed"] += last[1]

    def arrive(self, step):
        arrived = [index for index in self.ahead if self.saturated or self.served[index].arrival <= step]
        self.ahead = self.ahead[len(arrived) :]
        self.waiting += [[index, self.served[index].prompt_tokens] for index in arrived]
        return bool(arrived)

    def admit(self):
        while self.waiting and len(self.running) < self.max_sequences:
            index, tokens = self.waiting[0]
            try:
                self.manager.begin(str(index), [0] * tokens)
            except OutOfBlocks:
                if self.running:
                    return
                self.count["refused"] += 1
            else:
                self.running.append([index, tokens])
            self.waiting.pop(0)

    def sample(self):
        block_size = self.manager.spec.block_size
        self.count["steps"] += 1
        self.count["held"] += sum(tokens for _, tokens in self.running)
        self.count["taken"] += (self.manager.usable_blocks - self.manager.free_blocks) * block_size
        self.count["running"] += len(self.running)


def rows_of(declared, **serving):
    trace = Trace("tiny", "made by hand", tuple(requests((10, 6), (30, 2), (5, 20))))
    return list(measure_fragmentation(ReferenceManager, declared, trace, Serving(pool_tokens=512, **serving)))


def test_every_supported_block_size_is_measured_and_its_shares_add_up_to_one():
    rows = rows_of(ManagerCapabilities(block_sizes=Sizes((16, 32, 1024))))
    shares = {"effective_utilisation", "internal_fragmentation", "reserved", "external_fragmentation"}
    for block_size in (16, 32):
        measured = {row.metric: row.value for row in rows if row.params["block_size"] == block_size}
        assert sum(measured[share] for share in shares) == pytest.approx(1.0)
        assert 0 < measured["internal_fragmentation"] < 1
    assert {row.params["block_size"] for row in rows} == {16, 32}


def test_smaller_blocks_waste_less():
    rows = rows_of(ManagerCapabilities())
    used = [row.value for row in rows if row.metric == "effective_utilisation"]
    assert used == sorted(used, reverse=True)
    assert used[0] > used[-1]


TINY = Trace("tiny", "made by hand", tuple(requests((10, 6), (30, 2), (5, 20))))


def by_policy(metric, **serving):
    settings = Serving(pool_tokens=256, **serving)
    rows = measure_policies(contiguous_policies(TINY, settings), TINY, settings)
    return {row.params["policy"]: row.value for row in rows if row.metric == metric}


def test_reserving_the_longest_length_wastes_most():
    used = by_policy("effective_utilisation", max_length=64)
    assert used["reserve-max"] < min(used["buddy"], used["oracle"])
    assert max(used.values()) < 1


def test_only_knowing_the_final_length_leaves_no_slot_for_ever_empty():
    internal = by_policy("internal_fragmentation")
    assert internal["oracle"] == 0
    assert internal["reserve-max"] > internal["buddy"] > 0


def test_reserve_max_holds_what_it_says():
    # Steps 0 to 20; held: 10..16 in 7 steps, 30..32 in 3, 5..25 in 21; each of the three reserves 64 slots.
    held = sum(range(10, 17)) + sum(range(30, 33)) + sum(range(5, 26))
    used = by_policy("effective_utilisation", max_length=64)["reserve-max"]
    assert used == pytest.approx(held / (64 * (7 + 3 + 21)))


def test_a_manager_that_reserves_ahead_is_measured_as_its_policy_is():
    serving = Serving(pool_tokens=256, max_length=64)
    declared = ContiguousAdapter().capabilities.manager
    made = measure_fragmentation(lambda spec: ContiguousManager(spec, "reserve-max"), declared, TINY, serving)
    policy = measure_policies({"reserve-max": reserve_max(256, 64)}, TINY, serving)
    assert [(row.metric, row.value) for row in made] == [(row.metric, row.value) for row in policy]


def test_requests_longer_than_allowed_are_refused_and_counted():
    assert by_policy("refused_requests", max_length=25)["oracle"] == 1


def test_progress_ends_with_all_parts_done():
    seen = []
    trace = Trace("tiny", "made by hand", tuple(requests((10, 6), (30, 2))))
    rows = measure_fragmentation(
        ReferenceManager, ManagerCapabilities(), trace, progress=lambda text, done, total: seen.append((done, total))
    )
    assert list(rows)
    assert seen[-1] == (12, 12)
    assert seen == sorted(seen)
