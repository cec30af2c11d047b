"""Finding adapters: built-in names, `package.module:Class`, `./file.py:Class`, and entry points of third parties."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from kvbench.errors import AdapterError, KvbenchError, UsageError
from kvbench.interface import (
    KERNEL_OPERATIONS,
    KERNEL_OPTIONS,
    MANAGER_OPERATIONS,
    Adapter,
    AttentionKernel,
    CacheManager,
    Capabilities,
    KernelCapabilities,
    KnownLimit,
    ManagerCapabilities,
    Precision,
    Sizes,
)
from kvbench.names import closest

ENTRY_POINTS = "kvbench.adapters"
"""Entry-point group in which a third party publishes adapters."""

FAULT = "fault:"
"""Stands before the name of a fault or control of the catalogue, where an adapter is named."""


@dataclass(frozen=True)
class BuiltIn:
    """An adapter that ships with kvbench: where it is, what it needs, and how to get that.

    engine: the distribution whose version is the adapter's. extra: the extra of kvbench that brings it, where kvbench
    does not need it anyway.
    """

    name: str
    target: str
    about: str
    engine: str = "kvbench"
    extra: str | None = None


BUILT_IN = (
    BuiltIn("reference", "kvbench.adapters.reference:ReferenceAdapter", "the ground truth, float64, both halves"),
    BuiltIn("torch", "kvbench.adapters.torch:TorchAdapter", "a kernel as a good user of torch would write it", "torch"),
    BuiltIn("contiguous", "kvbench.adapters.contiguous:ContiguousAdapter", "reserves each sequence's maximal length"),
    BuiltIn("flex", "kvbench.adapters.flex:FlexAdapter", "torch's PagedAttention with flex_attention", "torch"),
    BuiltIn(
        "openvino",
        "kvbench.adapters.openvino:OpenVinoAdapter",
        "OpenVINO's PagedAttention op on the CPU",
        "openvino",
        extra="openvino",
    ),
    BuiltIn(
        "transformers",
        "kvbench.adapters.transformers:TransformersAdapter",
        "transformers' PagedAttentionCache with its SDPA path",
        "transformers",
        extra="transformers",
    ),
)


@dataclass(frozen=True)
class Listed:
    """An adapter in `kvbench list`; `missing` says why it cannot run here and how to get it."""

    name: str
    about: str
    version: str | None
    missing: str | None


def built_in(name: str) -> BuiltIn | None:
    """The built-in adapter called `name`."""
    return next((entry for entry in BUILT_IN if entry.name == name), None)


def known_names() -> list[str]:
    """Names that `load_adapter` knows without a module or file."""
    return [entry.name for entry in BUILT_IN] + [point.name for point in _entry_points()]


def list_adapters() -> Iterator[Listed]:
    """The built-in and published adapters, without importing any engine."""
    for entry in BUILT_IN:
        yield Listed(entry.name, entry.about, _version(entry.engine), _missing(entry))
    for point in _entry_points():
        owner = point.dist.name if point.dist else point.value
        yield Listed(point.name, f"published by {owner}", point.dist.version if point.dist else None, None)


def load_adapter(spec: str) -> Adapter:
    """The adapter that `spec` names.

    Raises `UsageError` for a name that is not known, `AdapterError` for an adapter that cannot be started here: not
    installed, raising on import, lacking a method, or declaring nonsense.
    """
    if not spec or any(character in spec for character in "\0\n\r"):
        raise UsageError(f"adapter name {spec!r} is not a name; {_ways_to_name()}")
    if entry := built_in(spec):
        if missing := _missing(entry):
            raise AdapterError(f"adapter {spec}: {missing}")
        return _instantiate(spec, *entry.target.split(":"))
    if point := next((point for point in _entry_points() if point.name == spec), None):
        module, _, attribute = point.value.partition(":")
        return _instantiate(spec, module, attribute)
    if spec.startswith(FAULT):
        from kvbench.faults.catalogue import adapter_named

        return adapter_named(spec.removeprefix(FAULT))
    if re.fullmatch(r"[\w.-]+==[\w.!+-]+", spec):
        raise AdapterError(f"adapter {spec}: isolated releases of an engine need `kvbench env`, which is not built yet")
    target, separator, attribute = spec.rpartition(":")
    if separator and attribute.isidentifier():
        if target.endswith(".py") or "/" in target:
            return _validated(spec, _attribute(spec, _load_file(spec, Path(target)), attribute))
        if all(part.isidentifier() for part in target.split(".")):
            return _instantiate(spec, target, attribute)
    if spec.endswith(".py"):
        raise UsageError(f"adapter {spec!r} names no class; write {spec}:ClassName")
    raise UsageError(f"unknown adapter {spec!r}{closest(spec, known_names())}; {_ways_to_name()}")


def _ways_to_name() -> str:
    return f"use one of {', '.join(known_names())}, package.module:Class or ./file.py:Class"


def _entry_points() -> list[metadata.EntryPoint]:
    reserved = {entry.name for entry in BUILT_IN}
    return sorted(
        (p for p in metadata.entry_points(group=ENTRY_POINTS) if p.name not in reserved), key=lambda p: p.name
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        from kvbench import __version__

        return __version__ if distribution == "kvbench" else None


def _missing(entry: BuiltIn) -> str | None:
    if importlib.util.find_spec(entry.engine) is not None:
        return None
    wanted = entry.engine if entry.extra is None else f"kvbench[{entry.extra}]"
    return f"{entry.engine} is not installed; pip install '{wanted}'"


def _instantiate(spec: str, module_name: str, attribute: str) -> Adapter:
    try:
        module = importlib.import_module(module_name)
    except KvbenchError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UsageError(f"unknown adapter {spec!r}: there is no module {error.name}; {_ways_to_name()}") from None
        raise AdapterError(f"adapter {spec}: importing it needs the module {error.name}, which is missing") from None
    except Exception as error:
        raise AdapterError(f"adapter {spec}: importing it raised {_told(error)}") from None
    return _validated(spec, _attribute(spec, module, attribute))


def _load_file(spec: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"adapter {spec!r}: there is no file {path}")
    # A name of its own for each path, so that two files called the same do not replace each other.
    name = f"kvbench_adapter_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    description = importlib.util.spec_from_file_location(name, path)
    if description is None or description.loader is None:
        raise UsageError(f"adapter {spec!r}: {path} is not a Python file; write ./file.py:ClassName")
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module
    try:
        description.loader.exec_module(module)
    except KvbenchError:
        raise
    except Exception as error:
        del sys.modules[name]
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise AdapterError(f"adapter {spec}: {path} raised {_told(error)}{line} on import") from None
    return module


def _attribute(spec: str, module: ModuleType, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        classes = [
            key for key, value in vars(module).items() if inspect.isclass(value) and hasattr(value, "capabilities")
        ]
        hint = f"; it has {', '.join(classes)}" if classes else ""
        raise UsageError(f"adapter {spec!r}: {name} is not in that module{hint}")
    return found


def _told(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__


# --------------------------------------------------------------------------------------------------------------------
# Validation: what an adapter declares is believed only as far as it makes sense
# --------------------------------------------------------------------------------------------------------------------


def _validated(spec: str, factory: Any) -> Adapter:
    if not callable(factory):
        raise AdapterError(f"adapter {spec}: expected a class, found {type(factory).__name__}")
    try:
        adapter = factory()
    except KvbenchError:
        raise
    except Exception as error:
        raise AdapterError(f"adapter {spec}: creating it without arguments raised {_told(error)}") from None
    for problem in _problems(adapter):
        raise AdapterError(f"adapter {spec}: {problem}; see docs/adapter.md")
    checked: Adapter = adapter
    return checked


def _problems(adapter: Any) -> Iterator[str]:
    for name in ("name", "version", "about"):
        value = getattr(adapter, name, None)
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
            yield f"it must have a printable text {name!r} of 1 to 200 characters, not {value!r:.80}"
            return
    capabilities = getattr(adapter, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        yield f"its 'capabilities' must be a kvbench.interface.Capabilities, not {type(capabilities).__name__}"
        return
    if capabilities.manager is None and capabilities.kernel is None:
        yield "it declares neither a manager nor a kernel"
    for half, declared in (("manager", capabilities.manager), ("kernel", capabilities.kernel)):
        if declared is not None and not callable(getattr(adapter, half, None)):
            yield f"it declares a {half} but has no method {half}()"
    if capabilities.manager is not None:
        yield from _manager_problems(capabilities.manager)
    if capabilities.kernel is not None:
        yield from _kernel_problems(capabilities.kernel)
    for option in capabilities.config:
        if not option.values or option.name == "precision":
            yield f"its setting {option.name!r} must have values, and may not be called 'precision'"


def _manager_problems(declared: Any) -> Iterator[str]:
    if not isinstance(declared, ManagerCapabilities):
        yield f"capabilities.manager must be a ManagerCapabilities, not {type(declared).__name__}"
        return
    yield from _unknown("manager operation", declared.operations, MANAGER_OPERATIONS)
    yield from _size_problems("block_sizes", declared.block_sizes)
    yield from _limit_problems(declared)
    if declared.max_groups < 1:
        yield f"max_groups must be at least 1, not {declared.max_groups!r}"


def _kernel_problems(declared: Any) -> Iterator[str]:
    if not isinstance(declared, KernelCapabilities):
        yield f"capabilities.kernel must be a KernelCapabilities, not {type(declared).__name__}"
        return
    if not declared.precisions or not all(isinstance(p, Precision) for p in declared.precisions):
        yield "its kernel must declare at least one Precision"
        return
    names = [precision.name for precision in declared.precisions]
    if len(set(names)) < len(names):
        yield f"its precisions have the same name twice: {', '.join(names)}"
    for precision in declared.precisions:
        yield from _precision_problems(precision)
    yield from _unknown("kernel operation", declared.operations, KERNEL_OPERATIONS)
    yield from _unknown("kernel option", declared.options, KERNEL_OPTIONS)
    for name in ("block_sizes", "head_dims", "gqa_ratios"):
        yield from _size_problems(name, getattr(declared, name))
    yield from _limit_problems(declared)


COMPUTE_DTYPES = ("float64", "float32", "float16", "bfloat16")
STORAGE_DTYPES = (*COMPUTE_DTYPES, "float8_e4m3fn", "float8_e5m2", "uint8", "int8", "uint4")


def _precision_problems(precision: Precision) -> Iterator[str]:
    for what, value, allowed in (
        ("compute", precision.compute, COMPUTE_DTYPES),
        ("storage", precision.storage, STORAGE_DTYPES),
        ("arithmetic", precision.arithmetic, (None, *COMPUTE_DTYPES)),
    ):
        if value not in allowed:
            known = ", ".join(str(dtype) for dtype in allowed)
            yield f"precision {precision.name!r}: {what} {value!r} is not one of {known}"


def _unknown(what: str, declared: Any, known: Any) -> Iterator[str]:
    for name in sorted(set(declared) - set(known)):
        yield f"unknown {what} {name!r}{closest(name, known)}; known: {', '.join(sorted(known))}"


def _size_problems(name: str, sizes: Any) -> Iterator[str]:
    if not isinstance(sizes, Sizes):
        yield f"{name} must be a kvbench.interface.Sizes, not {type(sizes).__name__}"
    elif sizes.values is not None and not sizes.values:
        yield f"{name} lists no size"
    elif min((sizes.minimum, sizes.multiple_of, *(sizes.values or (1,)))) < 1:
        yield f"{name} allows sizes below 1: {sizes}"
    elif sizes.maximum is not None and sizes.maximum < sizes.minimum:
        yield f"{name} is empty: {sizes}"


def _limit_problems(declared: Any) -> Iterator[str]:
    for limit in declared.limits:
        if limit.what not in get_args(KnownLimit):
            yield f"unknown limit {limit.what!r}{closest(str(limit.what), get_args(KnownLimit))}"
        elif not limit.reason:
            yield f"limit {limit.what!r} needs a reason"


def check_manager(spec: str, manager: object, operations: frozenset[Any]) -> None:
    """Raise `AdapterError` if a fresh manager lacks a method of the interface or of a declared operation."""
    _require_methods(spec, "manager", manager, CacheManager, [MANAGER_OPERATIONS[name] for name in sorted(operations)])


def check_kernel(spec: str, kernel: object, operations: frozenset[Any]) -> None:
    """Raise `AdapterError` if a fresh kernel lacks a method of the interface or of a declared operation."""
    _require_methods(spec, "kernel", kernel, AttentionKernel, [KERNEL_OPERATIONS[name] for name in sorted(operations)])


def _require_methods(spec: str, half: str, made: object, base: type, extras: list[type | None]) -> None:
    for protocol in (base, *(extra for extra in extras if extra is not None)):
        for name in _members(protocol):
            # Looked up on the class, so that a property is not evaluated.
            if not hasattr(type(made), name) and name not in getattr(made, "__dict__", {}):
                raise AdapterError(f"adapter {spec}: its {half} has no {name!r}, which {protocol.__name__} needs")


def _members(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


__all__ = [
    "BUILT_IN", "ENTRY_POINTS", "BuiltIn", "Listed", "built_in", "check_kernel", "check_manager", "known_names",
    "list_adapters", "load_adapter",
]  # fmt: skip
