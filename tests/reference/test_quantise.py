"""The error model of storage."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InvalidRequest, Unsupported
from kvbench.interface import Precision
from kvbench.reference.quantise import round_trip


def precision(storage, group=None, compute="float32"):
    return Precision("p", compute, storage, quant_group=group)


def test_floating_storage_rounds_to_nearest_even():
    x = torch.tensor([[1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12, -0.1]])
    expected = torch.tensor([[1.0, 1 + 2**-6, 1 + 2**-7, -0.10009765625]], dtype=torch.float64)
    assert torch.equal(round_trip(x, precision("bfloat16")), expected)


def test_input_is_rounded_to_the_compute_dtype_first():
    x = torch.tensor([0.1], dtype=torch.float64)
    assert torch.equal(round_trip(x, precision("float32", compute="float16")), x.half().double())


def test_unsigned_codes_by_hand():
    x = torch.tensor([[-1.0, 0.0, 0.4, 2.0, 10.0, 10.0, 25.0, 24.6]])
    found = round_trip(x, precision("uint4", group=4))
    assert torch.allclose(found, torch.tensor([[-1.0, 0.0, 0.4, 2.0, 10, 10, 25, 25]]).double(), atol=1e-6)


def test_signed_codes_by_hand():
    found = round_trip(torch.tensor([[127.0, -127.0, 3.4, -3.6]]), precision("int8"))
    assert torch.equal(found, torch.tensor([[127.0, -127.0, 3.0, -4.0]]).double())


@given(
    st.sampled_from(["uint8", "int8", "uint4"]),
    st.sampled_from([None, 2, 4]),
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=8, max_size=8),
)
def test_integer_codes_are_at_most_half_a_step_away(storage, group, numbers):
    x = torch.tensor([numbers])
    found = round_trip(x, precision(storage, group))
    groups = x.double().reshape(-1, group or 8)
    if storage == "int8":
        step = groups.abs().amax(1) / 127
    else:
        step = (groups.amax(1) - groups.amin(1)) / (255 if storage == "uint8" else 15)
    error = (found.reshape(groups.shape) - groups).abs().amax(1)
    assert found.dtype == torch.float64
    assert (error <= step / 2 + 1e-9 * groups.abs().amax(1)).all()


def test_a_constant_group_is_exact():
    x = torch.full((2, 3, 8), -2.7)
    for storage in ("uint8", "uint4"):
        torch.testing.assert_close(round_trip(x, precision(storage, 4)), x.double(), rtol=1e-12, atol=0)
    assert not round_trip(torch.zeros(1, 8), precision("int8")).any()


def test_groups_must_divide_the_head():
    with pytest.raises(InvalidRequest, match="does not divide"):
        round_trip(torch.zeros(1, 8), precision("uint8", 3))


@pytest.mark.parametrize("storage", ["int32", "bool", "nonsense"])
def test_unknown_storage_is_refused(storage):
    with pytest.raises(Unsupported, match=storage):
        round_trip(torch.zeros(1, 8), precision(storage))
