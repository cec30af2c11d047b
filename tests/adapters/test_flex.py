"""torch's PagedAttention as a manager, and its two known faults as the generic checks see them."""

import shutil

import pytest

from kvbench.adapters.flex import FlexAdapter, FlexManager
from kvbench.budget import BUDGETS, effort
from kvbench.codec import decode, encode
from kvbench.counterexample import make_counterexample, read_counterexample
from kvbench.errors import InvalidRequest, OutOfBlocks, UnknownSequence, Unsupported
from kvbench.interface import CacheSpec, GroupSpec, PoolSpec
from kvbench.results import ResultFolder
from kvbench.search import search
from kvbench.subject import Subject
from kvbench.suites.catalogue import CHECKS
from kvbench.verification import replay

BY_NAME = {check.name: check for check in CHECKS}


def manager(num_blocks=6, block_size=4, max_sequences=3):
    made = FlexAdapter().manager(PoolSpec(num_blocks, block_size, max_sequences=max_sequences), {})
    assert isinstance(made, FlexManager)
    return made


def test_sequences_take_blocks_as_they_grow_and_give_them_back():
    cache = manager()
    assert (cache.usable_blocks, cache.free_blocks) == (6, 6)
    assert cache.begin("a", [1, 2, 3]) == 0
    assert cache.begin("b", [1] * 5) == 0
    assert cache.free_blocks == 3
    held = [*cache.block_table("a"), *cache.block_table("b")]
    assert len(set(held)) == 3
    cache.extend("a", [4])
    assert len(cache.block_table("a")) == 1
    cache.extend("a", [5])
    assert cache.block_table("a")[0] == held[0]
    assert len(cache.block_table("a")) == 2
    cache.free("b")
    cache.free("a")
    assert cache.free_blocks == 6


def test_a_refusal_leaves_everything_as_it_was():
    cache = manager()
    cache.begin("a", [1] * 16)
    before = (list(cache.block_table("a")), cache.free_blocks)
    with pytest.raises(OutOfBlocks, match="36 tokens in batch row 0"):
        cache.extend("a", [1] * 20)
    with pytest.raises(OutOfBlocks, match="12 tokens in batch row 1"):
        cache.begin("b", [1] * 12)
    assert (list(cache.block_table("a")), cache.free_blocks) == before
    cache.begin("b", [1] * 8)


def test_every_batch_row_may_be_taken():
    cache = manager(max_sequences=1)
    cache.begin("a", [1])
    with pytest.raises(OutOfBlocks, match="all 1 batch rows are taken"):
        cache.begin("b", [1])


def test_misuse_and_what_it_cannot_do_are_refused():
    cache = manager()
    cache.begin("a", [1])
    with pytest.raises(UnknownSequence, match="'a' is running already"):
        cache.begin("a", [1])
    for call in (lambda: cache.free("x"), lambda: cache.extend("x", [1]), lambda: cache.block_table("x")):
        with pytest.raises(UnknownSequence, match="'x' is not running"):
            call()
    with pytest.raises(InvalidRequest, match="length 2 is not within the 1 tokens"):
        cache.commit("a", 2)
    with pytest.raises(Unsupported, match="namespace 'n'"):
        cache.begin("b", [1], "n")
    with pytest.raises(Unsupported, match="speculative"):
        cache.extend("a", [2], speculative=True)
    with pytest.raises(Unsupported, match="one group of full attention"):
        FlexManager(PoolSpec(4, 4, (GroupSpec(), GroupSpec(8))))
    with pytest.raises(InvalidRequest, match="must be the same"):
        FlexAdapter().kernel({}).create(CacheSpec(1, 1, 16, block_size=8), 6, cache)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_it_answers_as_eager_does():
    import torch

    from tests.adapters.kernel_cases import Sequences

    spec, rows, found = CacheSpec(4, 2, 64, block_size=32), ((31, 1), (70, 1)), []
    for mode in ("eager", "compiled"):
        kernel = FlexAdapter().kernel({"mode": mode})
        sequences = Sequences(kernel, spec, rows)
        found.append(kernel.forward(sequences.cache, sequences.batch(rows)))
    torch.testing.assert_close(found[0].out, found[1].out, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[0].lse, found[1].lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("correctness.bounds", "has lost its row"),  # `assign` writes past what was reserved
        ("lifecycle.joined", "rows outside its context"),  # `erase` leaves the way back of a reused batch row
    ],
)
def test_its_faults_are_found_and_replay(check, words, tmp_path):
    subject = Subject(FlexAdapter(), {"precision": "f32"})
    outcome = search(BY_NAME[check], subject, effort(BUDGETS["quick"], seed=0, checks=1))
    assert outcome.failure is not None
    assert words in outcome.failure.violation.message
    made = make_counterexample(BY_NAME[check], subject, "flex", outcome.failure, seed=0)
    with ResultFolder(tmp_path / "out") as folder:
        saved = read_counterexample(folder.path / "counterexamples" / folder.write_counterexample("flex", made))
    assert encode(decode(BY_NAME[check].case_type, saved.case, "case")) == saved.case
    assert replay(saved, CHECKS)[1] is not None
    assert replay(saved, CHECKS, "reference")[1] is None
