"""The ground truth as an adapter: every operation and option, nothing fast."""

from __future__ import annotations

from collections.abc import Mapping

import kvbench
from kvbench.interface import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    KERNEL_OPERATIONS,
    KERNEL_OPTIONS,
    MANAGER_OPERATIONS,
    AttentionKernel,
    CacheManager,
    Capabilities,
    KernelCapabilities,
    ManagerCapabilities,
    PoolSpec,
)


class ReferenceAdapter:
    """The executable specification in `kvbench.reference`. Its kernel multiplies in float64 in every precision."""

    name = "reference"
    version = kvbench.__version__
    about = "the executable specification: plain Python and float64"
    capabilities = Capabilities(
        manager=ManagerCapabilities(
            operations=frozenset(MANAGER_OPERATIONS),
            prefix_caching=True,
            namespaces=True,
            eviction="lru",
            windows=True,
            max_groups=8,
        ),
        kernel=KernelCapabilities(
            precisions=(FLOAT32, BFLOAT16, FLOAT16),
            separate_value_dim=True,
            options=KERNEL_OPTIONS,
            operations=frozenset(KERNEL_OPERATIONS),
            batch_invariant=True,
        ),
    )

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        from kvbench.reference.manager import ReferenceManager

        return ReferenceManager(spec)

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        from kvbench.reference.kernel import ReferenceKernel

        return ReferenceKernel()
