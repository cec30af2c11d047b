"""The kernels of the engines that kvbench drives, through their adapters, against attention in float64."""

import dataclasses

import pytest
import torch

from kvbench.errors import InvalidRequest, Unsupported
from kvbench.interface import HOLE, NO_SLOT, AttentionOptions, CacheSpec, Precision
from kvbench.reference.quantise import round_trip
from kvbench.registry import load_adapter
from tests.adapters.kernel_cases import DECODES, MIXED, PLAIN, PREFILLS, Sequences, assert_close, padded

ENGINES = [
    pytest.param("flex"),
    pytest.param("openvino", marks=pytest.mark.engine),
    pytest.param("transformers", marks=pytest.mark.engine),
]
SHAPE = CacheSpec(num_q_heads=4, num_kv_heads=2, head_dim=64, block_size=32)
SLOPES = (0.5, 0.25, 0.125, 1.0)
SINKS = (0.5, -1.0, 0.0, 2.0)
OPTIONS = {
    "scale": AttentionOptions(scale=0.3),
    "non_causal": AttentionOptions(causal=False),
    "window": AttentionOptions(window=7),
    "softcap": AttentionOptions(softcap=2.0),
    "alibi": AttentionOptions(alibi_slopes=SLOPES),
    "sinks": AttentionOptions(sinks=SINKS),
}


@pytest.fixture
def adapter(request):
    pytest.importorskip({"flex": "torch"}.get(request.param, request.param))
    return load_adapter(request.param)


def tolerance(precision):
    """A few roundings of outputs of size 4; integer codes of one scale a head lose a 255th of some 7."""
    return 0.05 if precision.quantised else 16 * torch.finfo(getattr(torch, precision.compute)).eps


def kernels(adapter):
    """Each precision's kernel and shape."""
    for precision in adapter.capabilities.kernel.precisions:
        yield adapter.kernel({"precision": precision.name}), dataclasses.replace(SHAPE, precision=precision)


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
@pytest.mark.parametrize("rows", [PREFILLS, DECODES, MIXED], ids=["prefill", "decode", "mixed"])
def test_attends_in_every_precision(adapter, rows):
    for kernel, spec in kernels(adapter):
        sequences = Sequences(kernel, spec, rows)
        batch = sequences.batch(rows)
        result = kernel.forward(sequences.cache, batch)
        exact = sequences.expected(batch, lambda x, spec=spec: round_trip(x, spec.precision))
        assert_close(result.out, exact.out, tolerance(spec.precision))
        assert result.out.dtype == batch.q.dtype
        if "lse" in adapter.capabilities.kernel.options:
            assert_close(result.lse[exact.lse.isfinite()], exact.lse[exact.lse.isfinite()], 1e-2)


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_does_what_it_says_or_is_refused(adapter, name):
    kernel = adapter.kernel({})
    sequences = Sequences(kernel, SHAPE, MIXED)
    batch = sequences.batch(MIXED, OPTIONS[name])
    if name not in adapter.capabilities.kernel.options:
        with pytest.raises(Unsupported, match=f"option {name} is not offered"):
            kernel.forward(sequences.cache, batch)
        return
    assert_close(kernel.forward(sequences.cache, batch).out, sequences.expected(batch).out, 1e-5)
    plain = sequences.expected(dataclasses.replace(batch, options=PLAIN)).out
    assert (plain - sequences.expected(batch).out).abs().max() > 1e-3, "this batch cannot tell"


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
def test_padding_is_neither_written_nor_answered(adapter):
    kernel = adapter.kernel({})
    sequences = Sequences(kernel, SHAPE, MIXED)
    batch = sequences.batch(MIXED)
    right = kernel.forward(sequences.cache, batch).out
    found = kernel.forward(sequences.cache, padded(batch, 5)).out
    assert_close(found[: len(right)], right.double(), 0)
    assert not found[len(right) :].any()


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
def test_blocks_behind_a_window_may_be_holes(adapter):
    if "window" not in adapter.capabilities.kernel.options:
        pytest.skip("windows are not declared")
    kernel, options = adapter.kernel({}), AttentionOptions(window=20)
    sequences = Sequences(kernel, SHAPE, DECODES)
    batch = sequences.batch(DECODES, options, holes=True)
    assert (batch.block_tables[:, 0] == HOLE).any()
    assert_close(kernel.forward(sequences.cache, batch).out, sequences.expected(batch).out, 1e-5)


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
def test_a_planned_call_answers_again_and_again(adapter):
    kernel = adapter.kernel({})
    sequences = Sequences(kernel, SHAPE, MIXED)
    batch = sequences.batch(MIXED)
    call = kernel.plan(sequences.cache, batch)
    first, second = call().out, call().out
    assert torch.equal(first, second)
    assert torch.equal(first, kernel.forward(sequences.cache, batch).out)


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
def test_copied_blocks_are_read_as_the_originals(adapter):
    for kernel, spec in kernels(adapter):
        sequences = Sequences(kernel, spec, DECODES)
        batch = sequences.batch(DECODES)
        right = kernel.forward(sequences.cache, batch).out
        taken = {int(block) for block in batch.block_tables.unique() if block != HOLE}
        source = int(batch.block_tables[3, 0])  # full, and not where the new token goes
        spare = next(block for block in range(sequences.cache.num_blocks) if block not in taken)
        kernel.copy_blocks(sequences.cache, [(source, spare)])
        batch.block_tables[3, 0] = spare
        assert_close(kernel.forward(sequences.cache, batch).out, right.double(), tolerance(spec.precision))


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
def test_what_is_not_declared_is_refused_by_name(adapter):
    kernel = adapter.kernel({})
    nonsense = Precision("f8", "float32", "float8_e4m3fn")
    with pytest.raises(Unsupported, match="precision 'f8' is not one of f32"):
        kernel.create(dataclasses.replace(SHAPE, precision=nonsense), 4)
    with pytest.raises(Unsupported, match="device 'tpu' is not one of cpu"):
        kernel.create(dataclasses.replace(SHAPE, device="tpu"), 4)
    if not adapter.capabilities.kernel.separate_value_dim:
        with pytest.raises(Unsupported, match="head_dim_v 32 must equal head_dim 64"):
            kernel.create(dataclasses.replace(SHAPE, head_dim_v=32), 4)


@pytest.mark.parametrize("adapter", ENGINES, indirect=True)
def test_wrong_requests_are_refused(adapter):
    kernel = adapter.kernel({})
    sequences = Sequences(kernel, SHAPE, DECODES)
    batch = sequences.batch(DECODES)
    with pytest.raises(InvalidRequest, match="layer"):
        kernel.forward(sequences.cache, dataclasses.replace(batch, layer=1))
    with pytest.raises((InvalidRequest, Unsupported)):
        kernel.forward(sequences.cache, dataclasses.replace(batch, q=batch.q[:, :2]))
    far = batch.slot_mapping.clone()
    far[0] = sequences.cache.num_blocks * SHAPE.block_size
    with pytest.raises((InvalidRequest, Unsupported), match="slot"):
        kernel.forward(sequences.cache, dataclasses.replace(batch, slot_mapping=far))
    with pytest.raises(InvalidRequest, match="block"):
        kernel.copy_blocks(sequences.cache, [(0, sequences.cache.num_blocks)])


@pytest.mark.parametrize("adapter", [*ENGINES[:2]], indirect=True)
def test_a_slot_that_contradicts_the_position_is_refused_by_engines_that_place_tokens_themselves(adapter):
    kernel = adapter.kernel({})
    sequences = Sequences(kernel, SHAPE, DECODES)
    batch = sequences.batch(DECODES)
    moved = batch.slot_mapping.clone()
    moved[0] += 1
    with pytest.raises(Unsupported, match=r"token 0 is to be written to slot \d+: this engine writes where"):
        kernel.forward(sequences.cache, dataclasses.replace(batch, slot_mapping=moved))


@pytest.mark.engine
def test_openvino_writes_every_token():
    pytest.importorskip("openvino")
    kernel = load_adapter("openvino").kernel({})
    sequences = Sequences(kernel, SHAPE, DECODES)
    batch = sequences.batch(DECODES)
    skipped = batch.slot_mapping.clone()
    skipped[0] = NO_SLOT
    with pytest.raises(Unsupported, match="this engine writes every one"):
        kernel.forward(sequences.cache, dataclasses.replace(batch, slot_mapping=skipped))
