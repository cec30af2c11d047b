from dataclasses import dataclass
from enum import Enum
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.codec import decode, encode
from kvbench.errors import InputError


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    size: int
    ratio: float = 0.5


@dataclass(frozen=True)
class Outer:
    inner: Inner
    rows: tuple[tuple[int, int], ...] = ()
    name: str | None = None
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    either: Inner | int = 0
    named: dict[str, float] | None = None
    flag: bool = False


OUTER = st.builds(
    Outer,
    inner=st.builds(Inner, size=st.integers(), ratio=st.floats(allow_nan=False)),
    rows=st.lists(st.tuples(st.integers(), st.integers())).map(tuple),
    name=st.none() | st.text(),
    kind=st.sampled_from(["a", "b"]),
    either=st.integers() | st.builds(Inner, size=st.integers(), ratio=st.floats(allow_nan=False)),
    named=st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False)),
    flag=st.booleans(),
)


@given(OUTER)
def test_what_is_encoded_decodes_to_itself(value):
    assert decode(Outer, encode(value)) == value


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({}, "value: field 'inner' is missing"),
        ([], "value: expected an object (Outer), found []"),
        ({"inner": {"size": "3"}}, "value.inner.size: expected a whole number, found '3'"),
        ({"inner": {"size": True}}, "value.inner.size: expected a whole number, found True"),
        ({"inner": {"size": 1}, "colour": "blue"}, "value.colour: expected one of 'red', found 'blue'"),
        ({"inner": {"size": 1}, "kind": "c"}, "value.kind: expected one of 'a', 'b', found 'c'"),
        ({"inner": {"size": 1}, "rows": [[1]]}, "value.rows[0]: expected a list of 2, found [1]"),
        ({"inner": {"size": 1}, "extra": 1}, "value: unknown field 'extra'"),
        ({"inner": {"size": 1}, "either": "x"}, "value.either: expected Inner or a whole number, found 'x'"),
        ({"inner": {"size": 1}, "flag": 1}, "value.flag: expected true or false, found 1"),
    ],
)
def test_what_does_not_fit_is_refused_by_place(data, complaint):
    with pytest.raises(InputError) as refused:
        decode(Outer, data)
    assert str(refused.value).startswith(complaint)


def test_only_data_can_be_encoded():
    with pytest.raises(TypeError, match="cannot encode object"):
        encode(object())
