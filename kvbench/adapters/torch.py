"""Plain torch as an adapter: a kernel such as a careful user of torch would write, with every option. No manager."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from kvbench.interface import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    KERNEL_OPERATIONS,
    KERNEL_OPTIONS,
    AttentionKernel,
    CacheManager,
    Capabilities,
    KernelCapabilities,
    PoolSpec,
)


class TorchAdapter:
    """`kvbench.adapters.torch_kernel.TorchKernel`: gathered pieces of K/V and an online softmax."""

    name = "torch"
    version = metadata.version("torch")
    about = "vectorised writes and piecewise gathered attention in plain torch"
    capabilities = Capabilities(
        kernel=KernelCapabilities(
            precisions=(FLOAT32, BFLOAT16, FLOAT16),
            separate_value_dim=True,
            options=KERNEL_OPTIONS,
            operations=frozenset(KERNEL_OPERATIONS),
        ),
    )

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        raise NotImplementedError("the torch adapter declares no manager")

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        from kvbench.adapters.torch_kernel import TorchKernel

        return TorchKernel()
