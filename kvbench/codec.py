"""Frozen dataclasses to JSON and back, checked against their type hints.

Files that come from strangers (counterexamples, result records) are read through `decode`: what does not have the
declared shape is refused with an `InputError` that names the place. Nothing is ever executed or unpickled.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from kvbench.errors import InputError

Json = Any
T = TypeVar("T")


def encode(value: Any) -> Json:
    """`value` as plain JSON data: dataclasses become objects, tuples lists, enums their values.

    Non-finite floats become the strings "nan", "inf" and "-inf", which JSON can hold.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"cannot encode {type(value).__name__}")


def decode(kind: type[T], data: Json, where: str = "value") -> T:
    """JSON `data` as a `kind` (a dataclass, or any type that a dataclass field here may have).

    Raises `InputError` naming the place in `data` that does not fit. Missing fields take their defaults; unknown ones
    are refused.
    """
    result: T = _decode(kind, data, where)
    return result


def _refuse(where: str, expected: str, data: Json) -> InputError:
    shown = repr(data)
    return InputError(f"{where}: expected {expected}, found {shown if len(shown) <= 60 else shown[:57] + '...'}")


def _decode(kind: Any, data: Json, where: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return data
    if origin is Literal:
        if data not in get_args(kind) or isinstance(data, bool):
            raise _refuse(where, "one of " + ", ".join(map(repr, get_args(kind))), data)
        return data
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, where)
    if origin in (tuple, list):
        return _decode_sequence(kind, data, where)
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise _refuse(where, "an object", data)
        _, item = get_args(kind)
        return {key: _decode(item, value, f"{where}.{key}") for key, value in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError:
            raise _refuse(where, "one of " + ", ".join(repr(m.value) for m in kind), data) from None
    return _decode_scalar(kind, data, where)


def _decode_union(kinds: tuple[Any, ...], data: Json, where: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    choices = [kind for kind in kinds if kind is not type(None)]
    errors = []
    for kind in choices:
        try:
            return _decode(kind, data, where)
        except InputError as error:
            errors.append(error)
    raise errors[0] if len(errors) == 1 else _refuse(where, " or ".join(_name(kind) for kind in choices), data)


def _decode_sequence(kind: Any, data: Json, where: str) -> Any:
    if not isinstance(data, list):
        raise _refuse(where, "a list", data)
    items = get_args(kind)
    if get_origin(kind) is list or items[1:] == (Ellipsis,):
        decoded = [_decode(items[0], item, f"{where}[{i}]") for i, item in enumerate(data)]
        return decoded if get_origin(kind) is list else tuple(decoded)
    if len(items) != len(data):
        raise _refuse(where, f"a list of {len(items)}", data)
    return tuple(_decode(item, value, f"{where}[{i}]") for i, (item, value) in enumerate(zip(items, data, strict=True)))


def _decode_dataclass(kind: Any, data: Json, where: str) -> Any:
    if not isinstance(data, dict):
        raise _refuse(where, f"an object ({kind.__name__})", data)
    hints = _hints(kind)
    if unknown := sorted(set(data) - set(hints)):
        raise InputError(f"{where}: unknown field {unknown[0]!r}; {kind.__name__} has {', '.join(hints)}")
    values = {name: _decode(hints[name], item, f"{where}.{name}") for name, item in data.items()}
    required = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in required if name not in values]:
        raise InputError(f"{where}: field {missing[0]!r} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _decode_scalar(kind: Any, data: Json, where: str) -> Any:
    if kind is float:
        if isinstance(data, str) and data in {"nan", "inf", "-inf"}:
            return float(data)
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            try:
                return float(data)
            except OverflowError:
                raise _refuse(where, "a number that fits into a float", data) from None
    elif isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise _refuse(where, _name(kind), data)


def _name(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))
