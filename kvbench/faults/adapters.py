"""Adapters around a manager class or a kernel class, declaring what the reference does unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import kvbench
from kvbench.interface import (
    AttentionKernel,
    CacheManager,
    Capabilities,
    ConfigOption,
    KernelCapabilities,
    ManagerCapabilities,
    PoolSpec,
)
from kvbench.subject import REFERENCE

MANAGER = REFERENCE.capabilities.manager or ManagerCapabilities()
KERNEL = REFERENCE.capabilities.kernel or KernelCapabilities()


@dataclass
class MadeAdapter:
    """An adapter made of up to two factories."""

    name: str
    capabilities: Capabilities
    make_manager: Callable[[PoolSpec, Mapping[str, str]], CacheManager] | None = None
    make_kernel: Callable[[Mapping[str, str]], AttentionKernel] | None = None
    about: str = "from the catalogue of faults"
    version: str = kvbench.__version__

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        if self.make_manager is None:
            raise NotImplementedError(f"{self.name} declares no manager")
        return self.make_manager(spec, config)

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        if self.make_kernel is None:
            raise NotImplementedError(f"{self.name} declares no kernel")
        return self.make_kernel(config)


def with_manager(
    name: str, make: Callable[[PoolSpec], CacheManager], config: tuple[ConfigOption, ...] = (), **declared: Any
) -> MadeAdapter:
    """An adapter of a manager alone. declared: what differs from the reference's `ManagerCapabilities`."""
    capabilities = Capabilities(manager=replace(MANAGER, **declared), config=config)
    return MadeAdapter(name, capabilities, make_manager=lambda spec, settings: make(spec))


def with_kernel(
    name: str, make: Callable[[], AttentionKernel], config: tuple[ConfigOption, ...] = (), **declared: Any
) -> MadeAdapter:
    """An adapter of a kernel alone. declared: what differs from the reference's `KernelCapabilities`."""
    capabilities = Capabilities(kernel=replace(KERNEL, **declared), config=config)
    return MadeAdapter(name, capabilities, make_kernel=lambda settings: make())


__all__ = ["KERNEL", "MANAGER", "MadeAdapter", "with_kernel", "with_manager"]
