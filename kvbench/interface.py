"""What an adapter implements: a cache manager, an attention kernel, or both, and what it declares about them.

Managers and kernels are black boxes to the suites, which see only what stands here. Importing this module imports no
torch, so that the command line and the pytest plugin start fast.

One engine step runs in this order: manager calls, owed copies, all writes, all reads, commits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

INTERFACE_VERSION = 1
"""Raised when an adapter written for the previous number would no longer work."""

HOLE = -1
"""Stands in a block table where a block was released behind a sliding window, and pads tables to equal width."""

NO_SLOT = -1
"""Stands in a slot mapping for a padded token, which must not be written anywhere."""


# --------------------------------------------------------------------------------------------------------------------
# Cache managers
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupSpec:
    """Layers that share one block table: full attention (`window` None) or a sliding window of `window` keys."""

    window: int | None = None


@dataclass(frozen=True)
class PoolSpec:
    """The pool that a manager is asked to manage.

    Block ids lie in [0, num_blocks). Blocks that the manager keeps for itself come out of `num_blocks`; it says through
    `usable_blocks` how many are left.
    """

    num_blocks: int
    block_size: int
    groups: tuple[GroupSpec, ...] = (GroupSpec(),)
    prefix_caching: bool = True
    host_blocks: int = 0
    max_sequences: int = 64
    max_length: int = 4096


class Tier(enum.StrEnum):
    """Which memory a copy reads and writes."""

    WITHIN = "within"  # device to device: copy-on-write
    OUT = "out"  # device to host: swap out
    IN = "in"  # host to device: swap in


class Copy(NamedTuple):
    """A block copy that is owed before the writes of this step. Copies are carried out in list order."""

    source: int
    target: int
    tier: Tier = Tier.WITHIN


@runtime_checkable
class CacheManager(Protocol):
    """Who owns which block. Sequences are named by strings; token ids are non-negative integers.

    Errors: `OutOfBlocks` when the pool is too full, `UnknownSequence`, `InvalidRequest`. A call that raises leaves the
    state as it was.
    """

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        """Admit `seq` with slots for all `tokens`; return how many leading tokens already have K/V.

        The caller computes the rest (all of it, or in chunks over several steps), so at least one token is left unless
        `tokens` is empty. Only prefixes begun under the same `namespace` may be hit.
        """

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        """Give `seq` slots for more tokens: the next chunk of its prompt, decoded tokens, or drafts (`speculative`).

        No tokens change nothing.
        """

    def commit(self, seq: str, length: int) -> None:
        """State, after the writes of a step, that the K/V of the first `length` tokens exists and is accepted.

        Only committed tokens may be shared beyond the step. Drafts that are accepted become committed; the others are
        dropped with `truncate`.
        """

    def free(self, seq: str) -> None:
        """Let go of `seq`, in whatever state it is: waiting, half prefilled, decoding, preempted, swapped out."""

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        """The physical block of each logical block of `seq`, `HOLE` where one was released behind a window.

        Valid until the next manager call.
        """

    def take_copies(self) -> Sequence[Copy]:
        """The copies owed before this step's writes, in order; each is handed out once."""

    @property
    def usable_blocks(self) -> int:
        """Blocks that sequences can use: the pool without those that the manager keeps for itself."""

    @property
    def free_blocks(self) -> int:
        """Blocks obtainable now: free ones and evictable cached ones."""

    def stats(self) -> Mapping[str, int]:
        """Counters since creation. Recognised: `prefix_queries`, `prefix_hits` (tokens), `evictions`, `preemptions`."""


@runtime_checkable
class Truncates(Protocol):
    """Operation `truncate`: drop drafts; operation `truncate_accepted`: also drop accepted tokens."""

    def truncate(self, seq: str, length: int) -> None:
        """Keep the first `length` tokens of `seq`."""


@runtime_checkable
class Forks(Protocol):
    """Operation `fork`: a second sequence with the same tokens, sharing the parent's blocks until either writes."""

    def fork(self, parent: str, child: str) -> None:
        """Make `child` a copy of `parent`, with the parent's committed length."""


@runtime_checkable
class Preempts(Protocol):
    """Operation `preempt`: give up the blocks of a running sequence and compute it again later."""

    def preempt(self, seq: str) -> None:
        """Release the blocks of `seq` but remember its tokens."""

    def resume(self, seq: str) -> int:
        """Allocate `seq` again; return how many leading tokens already have K/V. All or nothing, as `begin`."""


@runtime_checkable
class Swaps(Protocol):
    """Operation `swap`: move a sequence to the host pool and back; the moves are owed copies of tier OUT and IN."""

    def swap_out(self, seq: str) -> None:
        """Move `seq` to host blocks. Raises `OutOfBlocks` when the host pool is too full."""

    def swap_in(self, seq: str) -> None:
        """Move `seq` back to device blocks. Raises `OutOfBlocks` when the device pool is too full."""


@runtime_checkable
class Resets(Protocol):
    """Operation `reset`: forget every cached prefix (after a weight or adapter change)."""

    def reset(self) -> None:
        """Forget all cached prefixes; running sequences keep their blocks but these may not be hit any more."""


ManagerOperation = Literal["truncate", "truncate_accepted", "fork", "preempt", "swap", "reset", "abort"]
"""Optional manager operations. `abort`: `free` is legal inside a step, before the writes."""

MANAGER_OPERATIONS: Mapping[ManagerOperation, type | None] = {
    "truncate": Truncates,
    "truncate_accepted": Truncates,
    "fork": Forks,
    "preempt": Preempts,
    "swap": Swaps,
    "reset": Resets,
    "abort": None,
}


# --------------------------------------------------------------------------------------------------------------------
# Attention kernels
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """A precision that a kernel can be run in, under the name that `--config precision=NAME` selects.

    compute: torch dtype name of q, k, v and out.
    storage: how K/V elements rest in the cache: a torch dtype name, or "uint8", "int8", "uint4" for integer codes with
        a scale (and zero point) for every `quant_group` elements of a head (None: the whole head).
    arithmetic: dtype in which the engine multiplies, where it is narrower than `compute` (None: the same).
    """

    name: str
    compute: str
    storage: str
    arithmetic: str | None = None
    quant_group: int | None = None

    @property
    def quantised(self) -> bool:
        """Whether elements are stored as integer codes with scales."""
        return self.storage in {"uint8", "int8", "uint4"}


FLOAT32 = Precision("f32", "float32", "float32")
BFLOAT16 = Precision("bf16", "bfloat16", "bfloat16")
FLOAT16 = Precision("f16", "float16", "float16")


@dataclass(frozen=True)
class CacheSpec:
    """Shape of the K/V cache that a kernel is asked to create. `head_dim_v` None means the same as `head_dim`."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    precision: Precision = FLOAT32
    head_dim_v: int | None = None
    num_layers: int = 1
    device: str = "cpu"

    @property
    def value_dim(self) -> int:
        """Head dimension of V."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v


@dataclass(frozen=True)
class AttentionOptions:
    """How scores become weights. Defaults: scale head_dim**-0.5, causal, everything else off.

    window: number of visible keys, the query's own included (positions i - window + 1 .. i).
    softcap: scores become softcap * tanh(scores / softcap), after the scale and before bias and mask.
    alibi_slopes: one a query head; adds slope * (key position - query position).
    sinks: one logit a query head that joins the softmax's denominator and carries no value.
    """

    scale: float | None = None
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    sinks: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Batch:
    """The new tokens of several sequences, packed: prefills, chunks and decodes in one call.

    Row i holds tokens query_start_loc[i]:query_start_loc[i + 1], the last ones of its seq_lens[i] tokens of context;
    either number may be zero.

    q: [num_tokens, num_q_heads, head_dim]
    k: [num_tokens, num_kv_heads, head_dim]
    v: [num_tokens, num_kv_heads, head_dim_v]
    block_tables: int32 [num_seqs, max_blocks]; what stands past the blocks of a row's context is never read
    seq_lens: int32 [num_seqs], new tokens included
    query_start_loc: int32 [num_seqs + 1]
    slot_mapping: int64 [num_tokens], block id * block_size + offset; NO_SLOT for padding
    layer: which layer of the cache
    seqs: the sequence of each row, where the tables come from a manager; an engine that keeps tables of its own finds
        them by this name
    """

    q: Tensor
    k: Tensor
    v: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    slot_mapping: Tensor
    options: AttentionOptions = AttentionOptions()
    layer: int = 0
    seqs: tuple[str, ...] | None = None


@dataclass(frozen=True)
class AttentionResult:
    """out: [num_tokens, num_q_heads, head_dim_v]; lse: natural log-sum-exp of the scores [num_tokens, num_q_heads].

    A token with no visible key has out 0 and lse -inf (or the sink's logit).
    """

    out: Tensor
    lse: Tensor | None = None


@runtime_checkable
class AttentionKernel(Protocol):
    """Writes K/V to slots and attends through block tables. The cache is opaque; its layout is the kernel's business.

    Errors: `Unsupported` for what is not declared, `InvalidRequest` for blocks outside the pool, slots in holes, wrong
    shapes.
    """

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> Any:
        """A cache of `num_blocks` blocks. `manager` is given when this adapter's own manager owns the tables."""

    def forward(self, cache: Any, batch: Batch) -> AttentionResult:
        """Write the batch's K/V at its slots, then attend."""


@runtime_checkable
class Writes(Protocol):
    """Operation `write`: the write half alone."""

    def write(self, cache: Any, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        """Write k [n, num_kv_heads, head_dim] and v [n, num_kv_heads, head_dim_v] at slot_mapping int64 [n].

        `NO_SLOT` entries are skipped. `slot_mapping` may be shorter than k and v: the rest is padding.
        """


@runtime_checkable
class Attends(Protocol):
    """Operation `attend`: the attention half alone; the batch's k, v and slot_mapping are not used."""

    def attend(self, cache: Any, batch: Batch) -> AttentionResult:
        """Attend over what the cache holds already."""


@runtime_checkable
class CopiesBlocks(Protocol):
    """Operation `copy_blocks`: what a manager's copy-on-write needs."""

    def copy_blocks(self, cache: Any, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of all layers, K and V, (source, target) in order."""


@runtime_checkable
class Plans(Protocol):
    """Operation `plan`: set-up (metadata, compilation) that an engine does once and then calls many times."""

    def plan(self, cache: Any, batch: Batch) -> Callable[[], AttentionResult]:
        """A call that runs `forward` on this batch again and again, with everything reusable prepared."""


KernelOperation = Literal["write", "attend", "copy_blocks", "plan"]
KERNEL_OPERATIONS: Mapping[KernelOperation, type] = {
    "write": Writes,
    "attend": Attends,
    "copy_blocks": CopiesBlocks,
    "plan": Plans,
}

KernelOption = Literal["scale", "non_causal", "window", "softcap", "alibi", "sinks", "lse"]
KERNEL_OPTIONS: frozenset[KernelOption] = frozenset(
    {"scale", "non_causal", "window", "softcap", "alibi", "sinks", "lse"}
)


# --------------------------------------------------------------------------------------------------------------------
# Capabilities
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """A set of positive integers: those listed, or all multiples of `multiple_of` from `minimum` to `maximum`."""

    values: tuple[int, ...] | None = None
    multiple_of: int = 1
    minimum: int = 1
    maximum: int | None = None

    def __contains__(self, size: int) -> bool:
        if self.values is not None:
            return size in self.values
        return size >= self.minimum and size % self.multiple_of == 0 and (self.maximum is None or size <= self.maximum)

    def among(self, candidates: Sequence[int]) -> list[int]:
        """The candidates that are in the set; if none is, the listed sizes, or the smallest one that is."""
        chosen = [size for size in candidates if size in self]
        if chosen:
            return chosen
        if self.values is not None:
            return list(self.values)
        return [-(-self.minimum // self.multiple_of) * self.multiple_of]

    def __str__(self) -> str:
        if self.values is not None:
            return ", ".join(map(str, self.values))
        bounds = f"{self.minimum}..{'' if self.maximum is None else self.maximum}"
        return bounds if self.multiple_of == 1 else f"multiples of {self.multiple_of} in {bounds}"


ANY_SIZE = Sizes()


@dataclass(frozen=True)
class Limit:
    """A documented limit. `what` is a `KnownLimit` that checks ask for; `reason` is printed where one is skipped."""

    what: KnownLimit
    reason: str


KnownLimit = Literal[
    "poison",  # non-finite values in dead memory reach the output
    "unchecked_ids",  # block ids outside the pool, or slots in holes, are not checked
    "empty_rows",  # rows with no new token or no context are not accepted
    "full_context_queries",  # more query tokens than context are not accepted
    "misuse",  # operations on unknown sequences are not refused
]


@dataclass(frozen=True)
class ManagerCapabilities:
    """What a manager supports.

    block_sizes: block sizes in tokens.
    operations: the optional operations.
    prefix_caching: prompts can hit cached prefixes (`partial_blocks`: also up to the middle of a block).
    namespaces: `begin` accepts a namespace.
    eviction: order in which unused cached blocks are given up, where it is documented.
    windows, max_groups: sliding-window groups, and how many groups of layers one manager holds.
    paged: blocks are allocated as they are needed. One that reserves a sequence's whole length at `begin` says no.
    """

    block_sizes: Sizes = ANY_SIZE
    operations: frozenset[ManagerOperation] = frozenset()
    prefix_caching: bool = False
    partial_blocks: bool = False
    namespaces: bool = False
    eviction: Literal["lru"] | None = None
    windows: bool = False
    max_groups: int = 1
    paged: bool = True
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class KernelCapabilities:
    """What a kernel supports.

    precisions: the first is the default.
    block_sizes, head_dims: in tokens, in elements. `separate_value_dim`: head_dim_v may differ from head_dim.
    gqa_ratios: query heads per KV head.
    options, operations: the optional ones.
    batch_invariant: a row's output has the same bits whatever else is in the batch.
    coupled: the kernel reads tables that its own manager keeps, so block ids given from elsewhere only reach it through
        what `create` and `forward` set up.
    """

    precisions: tuple[Precision, ...] = (FLOAT32,)
    block_sizes: Sizes = ANY_SIZE
    head_dims: Sizes = ANY_SIZE
    separate_value_dim: bool = False
    gqa_ratios: Sizes = ANY_SIZE
    options: frozenset[KernelOption] = frozenset({"scale"})
    operations: frozenset[KernelOperation] = frozenset()
    batch_invariant: bool = False
    coupled: bool = False
    devices: tuple[str, ...] = ("cpu",)
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class ConfigOption:
    """A setting of an adapter that `--config NAME=VALUE` may change: its values (the first is the default) and meaning.

    `precision` is always available for kernels and need not be listed.
    """

    name: str
    values: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Capabilities:
    """What an adapter offers: either half or both. A missing half is filled with the reference."""

    manager: ManagerCapabilities | None = None
    kernel: KernelCapabilities | None = None
    config: tuple[ConfigOption, ...] = ()


@runtime_checkable
class Adapter(Protocol):
    """One engine, in one file. The class is called without arguments; nothing heavy happens before the halves are made.

    name: how reports call it. version: of the engine. about: one line.
    """

    name: str
    version: str
    about: str
    capabilities: Capabilities

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        """A fresh manager; called only when `capabilities.manager` is declared."""

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        """A fresh kernel; called only when `capabilities.kernel` is declared."""


__all__ = [
    "ANY_SIZE", "BFLOAT16", "FLOAT16", "FLOAT32", "HOLE", "INTERFACE_VERSION", "KERNEL_OPERATIONS", "KERNEL_OPTIONS",
    "MANAGER_OPERATIONS", "NO_SLOT", "Adapter", "AttentionKernel", "AttentionOptions", "AttentionResult", "Attends",
    "Batch", "CacheManager", "CacheSpec", "Capabilities", "ConfigOption", "CopiesBlocks", "Copy", "Forks", "GroupSpec",
    "KernelCapabilities", "KernelOperation", "KernelOption", "KnownLimit", "Limit", "ManagerCapabilities",
    "ManagerOperation", "Plans", "PoolSpec", "Precision", "Preempts", "Resets", "Sizes", "Swaps", "Tier", "Truncates",
    "Writes",
]  # fmt: skip
