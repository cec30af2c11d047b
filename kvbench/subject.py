"""What a check is run against: an adapter with a configuration, its missing half filled with the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kvbench.adapters.reference import ReferenceAdapter
from kvbench.errors import CacheError, UsageError
from kvbench.interface import (
    Adapter,
    AttentionKernel,
    AttentionResult,
    Batch,
    CacheManager,
    CacheSpec,
    Copy,
    KernelCapabilities,
    KnownLimit,
    ManagerCapabilities,
    PoolSpec,
    Precision,
)

T = TypeVar("T")

REFERENCE = ReferenceAdapter()


class EngineError(Exception):
    """The engine raised something that is not one of the interface's errors: a crash, seen from outside."""

    def __init__(self, operation: str, error: Exception) -> None:
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        super().__init__(f"{operation} raised {type(error).__name__}: {first_line[:300]}")
        self.operation = operation
        self.error = error


def _guard(operation: str, call: Callable[..., T], *args: Any) -> T:
    """Call the engine; its own errors become `EngineError`, so that ours are never taken for them."""
    try:
        return call(*args)
    except CacheError:
        raise
    except Exception as error:
        raise EngineError(operation, error) from error


class GuardedManager:
    """A manager whose unexpected exceptions are told apart from the suites' own."""

    def __init__(self, manager: CacheManager) -> None:
        self.unguarded: Any = manager

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        result: int = _guard("begin", self.unguarded.begin, seq, tokens, namespace)
        return result

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        _guard("extend", self.unguarded.extend, seq, tokens, speculative)

    def commit(self, seq: str, length: int) -> None:
        _guard("commit", self.unguarded.commit, seq, length)

    def free(self, seq: str) -> None:
        _guard("free", self.unguarded.free, seq)

    def truncate(self, seq: str, length: int) -> None:
        _guard("truncate", self.unguarded.truncate, seq, length)

    def fork(self, parent: str, child: str) -> None:
        _guard("fork", self.unguarded.fork, parent, child)

    def preempt(self, seq: str) -> None:
        _guard("preempt", self.unguarded.preempt, seq)

    def resume(self, seq: str) -> int:
        result: int = _guard("resume", self.unguarded.resume, seq)
        return result

    def swap_out(self, seq: str) -> None:
        _guard("swap_out", self.unguarded.swap_out, seq)

    def swap_in(self, seq: str) -> None:
        _guard("swap_in", self.unguarded.swap_in, seq)

    def reset(self) -> None:
        _guard("reset", self.unguarded.reset)

    def block_table(self, seq: str, group: int = 0) -> list[int]:
        return [int(block) for block in _guard("block_table", self.unguarded.block_table, seq, group)]

    def take_copies(self) -> list[Copy]:
        return [Copy(*copy) for copy in _guard("take_copies", self.unguarded.take_copies)]

    @property
    def usable_blocks(self) -> int:
        return int(_guard("usable_blocks", getattr, self.unguarded, "usable_blocks"))

    @property
    def free_blocks(self) -> int:
        return int(_guard("free_blocks", getattr, self.unguarded, "free_blocks"))

    def stats(self) -> dict[str, int]:
        return dict(_guard("stats", self.unguarded.stats))


class GuardedKernel:
    """A kernel whose unexpected exceptions are told apart from the suites' own."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self.unguarded: Any = kernel

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> Any:
        own = manager.unguarded if isinstance(manager, GuardedManager) else manager
        return _guard("create", self.unguarded.create, spec, num_blocks, own)

    def forward(self, cache: Any, batch: Batch) -> AttentionResult:
        result: AttentionResult = _guard("forward", self.unguarded.forward, cache, batch)
        return result

    def write(self, cache: Any, k: Any, v: Any, slot_mapping: Any, layer: int = 0) -> None:
        _guard("write", self.unguarded.write, cache, k, v, slot_mapping, layer)

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        result: AttentionResult = _guard("attend", self.unguarded.attend, cache, batch)
        return result

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int]]) -> None:
        _guard("copy_blocks", self.unguarded.copy_blocks, cache, pairs)

    def plan(self, cache: Any, batch: Batch) -> Callable[[], AttentionResult]:
        result: Callable[[], AttentionResult] = _guard("plan", self.unguarded.plan, cache, batch)
        return result


@dataclass(frozen=True)
class Subject:
    """An adapter with a configuration, ready to make managers and kernels.

    config: the settings given by the user, `precision` included once one is chosen.
    """

    adapter: Adapter
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = {option.name: option.values for option in self.adapter.capabilities.config}
        if self.adapter.capabilities.kernel is not None:
            options["precision"] = tuple(p.name for p in self.adapter.capabilities.kernel.precisions)
        for key, value in self.config.items():
            if key not in options:
                known = ", ".join(sorted(options)) or "none"
                raise UsageError(f"{self.adapter.name} has no setting {key!r}; its settings: {known}")
            if value not in options[key]:
                raise UsageError(f"{self.adapter.name}: {key}={value!r} is not one of {', '.join(options[key])}")

    @property
    def own_manager(self) -> bool:
        """Whether the manager is the adapter's (else the reference's)."""
        return self.adapter.capabilities.manager is not None

    @property
    def own_kernel(self) -> bool:
        """Whether the kernel is the adapter's (else the reference's)."""
        return self.adapter.capabilities.kernel is not None

    @property
    def manager(self) -> ManagerCapabilities:
        """Capabilities of the manager in use."""
        declared = self.adapter.capabilities.manager or REFERENCE.capabilities.manager
        assert declared is not None
        return declared

    @property
    def kernel(self) -> KernelCapabilities:
        """Capabilities of the kernel in use."""
        declared = self.adapter.capabilities.kernel or REFERENCE.capabilities.kernel
        assert declared is not None
        return declared

    @property
    def precision(self) -> Precision:
        """The precision in use: the configured one, else the kernel's first."""
        name = self.config.get("precision")
        return next((p for p in self.kernel.precisions if p.name == name), self.kernel.precisions[0])

    @property
    def label(self) -> str:
        """Name for people: "openvino", "openvino precision=f16"."""
        return " ".join([self.adapter.name, *(f"{key}={value}" for key, value in sorted(self.config.items()))])

    def limit(self, what: KnownLimit) -> str | None:
        """The reason of a documented limit of either half, if it is declared."""
        limits = (*self.manager.limits, *self.kernel.limits)
        return next((limit.reason for limit in limits if limit.what == what), None)

    def with_precision(self, precision: Precision) -> Subject:
        """The same adapter in another of its precisions."""
        return replace(self, config={**self.config, "precision": precision.name})

    def at_nearest_precision(self, wanted: str | None) -> Subject:
        """The same adapter in the precision called `wanted` if it has it, else in its default one."""
        if wanted is None or not any(p.name == wanted for p in self.kernel.precisions):
            return self
        if not self.own_kernel:
            return self
        return replace(self, config={**self.config, "precision": wanted})

    def precisions(self) -> list[Subject]:
        """This subject in every precision of its kernel, or alone if one is configured or the kernel is filled in."""
        if "precision" in self.config or not self.own_kernel:
            return [self]
        return [self.with_precision(precision) for precision in self.kernel.precisions]

    def new_manager(self, spec: PoolSpec) -> GuardedManager:
        """A fresh manager."""
        source = self.adapter if self.own_manager else REFERENCE
        settings = self.config if self.own_manager else {}
        return GuardedManager(_guard("manager", source.manager, spec, settings))

    def new_kernel(self) -> GuardedKernel:
        """A fresh kernel."""
        source = self.adapter if self.own_kernel else REFERENCE
        settings = self.config if self.own_kernel else {}
        return GuardedKernel(_guard("kernel", source.kernel, settings))


__all__ = ["REFERENCE", "EngineError", "GuardedKernel", "GuardedManager", "Subject"]
