"""torch's `PagedAttention`, the page table that comes with `flex_attention`, as a manager and as a kernel.

The engine keeps a table (batch row, logical page) -> physical page, and the way back, (batch row, physical page) ->
logical page, by which masks given in logical positions are asked about physical ones. Both stay as the engine made
them: with its own manager the kernel attends by the tables and the way back that `reserve` and `erase` have left; with
another manager it sets up, for each call, an engine of as many batch rows as the batch has and writes the given tables
into it. Writes go through the engine's `assign`, by row and position, whatever its table says there.

`convert_logical_block_mask` takes batch rows in any order, but the mask it returns asks the way back of row 0, 1, ...;
here the engine's `get_mask_mod` is asked about the right row instead. Rows with equally many new tokens are one call.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from kvbench.adapters.declared import (
    check_cache,
    check_options,
    check_positions,
    check_single_group,
    rows_and_positions,
)
from kvbench.errors import AdapterError, InvalidRequest, OutOfBlocks, UnknownSequence, Unsupported
from kvbench.interface import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    HOLE,
    NO_SLOT,
    AttentionKernel,
    AttentionOptions,
    AttentionResult,
    Batch,
    CacheManager,
    CacheSpec,
    Capabilities,
    ConfigOption,
    Copy,
    KernelCapabilities,
    Limit,
    ManagerCapabilities,
    PoolSpec,
)

if TYPE_CHECKING:
    from torch import Tensor

QUERIES_PER_BLOCK = 128
"""Rows of a block mask that flex_attention decides about at once: its own default."""

MANAGER = ManagerCapabilities(operations=frozenset({"abort"}))

KERNEL = KernelCapabilities(
    precisions=(FLOAT32, BFLOAT16, FLOAT16),
    separate_value_dim=True,
    options=frozenset({"scale", "non_causal", "window", "softcap", "alibi", "lse"}),
    operations=frozenset({"attend", "copy_blocks", "plan"}),
    coupled=True,
    limits=(Limit("poison", "flex_attention gives masked keys the weight 0, and 0 times a NaN in a free page is NaN"),),
)


class FlexAdapter:
    """`torch.nn.attention.experimental._paged_attention.PagedAttention` with `flex_attention`."""

    name = "flex"
    version = metadata.version("torch")
    about = "torch's experimental PagedAttention with flex_attention"
    capabilities = Capabilities(
        manager=MANAGER,
        kernel=KERNEL,
        config=(
            ConfigOption(
                "mode",
                ("eager", "compiled"),
                "compiled: flex_attention through torch.compile, which takes many seconds a shape",
            ),
        ),
    )

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        return FlexManager(spec)

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        return FlexKernel(compiled=config.get("mode", "eager") == "compiled")


def new_engine(num_pages: int, page_size: int, max_rows: int, device: str) -> Any:
    """An engine without sequences. Raises `AdapterError` where this torch has none."""
    try:
        from torch.nn.attention.experimental._paged_attention import PagedAttention
    except ImportError as error:
        raise AdapterError(
            f"adapter flex: this torch has no PagedAttention ({error}); pip install 'torch>=2.6'"
        ) from None
    return PagedAttention(num_pages, page_size, max_rows, device=device)


# --------------------------------------------------------------------------------------------------------------------
# The manager half
# --------------------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """A sequence's batch row and its number of tokens."""

    row: int
    length: int


class FlexManager:
    """Sequences in the engine's batch rows; it shares nothing and needs no copies."""

    def __init__(self, spec: PoolSpec) -> None:
        check_single_group(spec)
        if min(spec.num_blocks, spec.block_size, spec.max_sequences) < 1:
            raise InvalidRequest(f"{spec}: blocks, their size and the number of sequences must be at least 1")
        self.spec = spec
        self.engine = new_engine(spec.num_blocks, spec.block_size, spec.max_sequences, "cpu")
        self._free_rows = list(range(spec.max_sequences - 1, -1, -1))
        self._held: dict[str, Held] = {}

    def begin(self, seq: str, tokens: Sequence[int], namespace: str | None = None) -> int:
        if namespace is not None:
            raise Unsupported(f"namespace {namespace!r}: this engine caches no prefixes and knows no namespaces")
        if seq in self._held:
            raise UnknownSequence(f"sequence {seq!r} is running already; free it first")
        length = _count(tokens)
        if not self._free_rows:
            raise OutOfBlocks(f"all {self.spec.max_sequences} batch rows are taken; free a sequence first")
        self._reserve(self._free_rows[-1], length)
        self._held[seq] = Held(self._free_rows.pop(), length)
        return 0

    def extend(self, seq: str, tokens: Sequence[int], speculative: bool = False) -> None:
        if speculative:
            raise Unsupported("speculative tokens: this engine cannot drop them again")
        held = self._find(seq)
        length = held.length + _count(tokens)
        self._reserve(held.row, length)
        held.length = length

    def commit(self, seq: str, length: int) -> None:
        held = self._find(seq)
        if not 0 <= length <= held.length:
            raise InvalidRequest(f"length {length} is not within the {held.length} tokens of {seq!r}")

    def free(self, seq: str) -> None:
        import torch

        held = self._find(seq)
        self.engine.erase(torch.tensor([held.row]))
        self._free_rows.append(held.row)
        del self._held[seq]

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        row = self._find(seq).row
        pages = int(self.engine.capacity[row]) // self.spec.block_size
        table: list[int] = self.engine.page_table[row, :pages].tolist()
        return table

    def take_copies(self) -> Sequence[Copy]:
        return ()

    @property
    def usable_blocks(self) -> int:
        return self.spec.num_blocks

    @property
    def free_blocks(self) -> int:
        return len(self.engine.empty_pages)

    def stats(self) -> Mapping[str, int]:
        return {}

    def row_of(self, seq: str) -> int:
        """The batch row of `seq`. Raises `UnknownSequence`."""
        return self._find(seq).row

    def _find(self, seq: str) -> Held:
        if seq not in self._held:
            raise UnknownSequence(f"sequence {seq!r} is not running; begin it first")
        return self._held[seq]

    def _reserve(self, row: int, length: int) -> None:
        import torch

        try:
            self.engine.reserve(torch.tensor([row]), torch.tensor([length]))
        except (AssertionError, RuntimeError) as error:
            if "empty pages" not in str(error):
                raise
            raise OutOfBlocks(f"{length} tokens in batch row {row}: {error}") from None


def _count(tokens: Sequence[int]) -> int:
    from kvbench.reference.refusals import check_tokens

    return len(check_tokens(tokens))


# --------------------------------------------------------------------------------------------------------------------
# The kernel half
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlexCache:
    """K and V of each layer, [1, num_kv_heads, num_blocks * block_size, dim]: the caller owns them, not the engine."""

    spec: CacheSpec
    num_blocks: int
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    manager: FlexManager | None = None


@dataclass(frozen=True)
class Seated:
    """A batch whose rows have found their batch rows in an engine.

    rows: int64 [num_seqs], the engine's row of each row of the batch.
    """

    engine: Any
    rows: Tensor


@dataclass(frozen=True)
class Place:
    """Where some tokens go. tokens: int64 [B, n], in the batch; rows: [B], of the engine; positions: [B, n]."""

    tokens: Tensor
    rows: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Call:
    """One call of flex_attention, of the rows that have `count` new tokens each.

    tokens: int64 [B, count], where they lie in the batch. arguments: what is the same at every repetition.
    """

    tokens: Tensor
    arguments: Mapping[str, Any] = field(default_factory=dict)


class FlexKernel:
    """`assign`, then `flex_attention` under the engine's converted masks."""

    def __init__(self, compiled: bool = False) -> None:
        self._compiled = compiled
        self._attention: Callable[..., Any] | None = None

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> FlexCache:
        import torch

        from kvbench.reference.requests import check_spec

        check_spec(spec, num_blocks)
        check_cache(KERNEL, spec)
        own = manager if isinstance(manager, FlexManager) else None
        if own is not None and (own.spec.num_blocks, own.spec.block_size) != (num_blocks, spec.block_size):
            raise InvalidRequest(
                f"{num_blocks} blocks of {spec.block_size} for a manager of {own.spec.num_blocks} of "
                f"{own.spec.block_size}: they must be the same"
            )
        dtype = getattr(torch, spec.precision.storage)

        def zeros(dim: int) -> tuple[Tensor, ...]:
            shape = (1, spec.num_kv_heads, num_blocks * spec.block_size, dim)
            return tuple(torch.zeros(shape, dtype=dtype) for _ in range(spec.num_layers))

        return FlexCache(spec, num_blocks, zeros(spec.head_dim), zeros(spec.value_dim), own)

    def forward(self, cache: FlexCache, batch: Batch) -> AttentionResult:
        """Compiled on a CPU, flex_attention returns no lse: then the eager one is asked for it."""
        result = self.plan(cache, batch)()
        return result if not self._compiled else replace(result, lse=FlexKernel().attend(cache, batch).lse)

    def attend(self, cache: FlexCache, batch: Batch) -> AttentionResult:
        self._check(cache, batch)
        result = self._answer(cache, batch, self._calls(cache, batch, _seat(cache, batch)))
        return result if not self._compiled else replace(result, lse=FlexKernel().attend(cache, batch).lse)

    def plan(self, cache: FlexCache, batch: Batch) -> Callable[[], AttentionResult]:
        """Masks are made once; a compiled flex_attention is compiled at the first call."""
        from kvbench.reference.requests import check_write

        self._check(cache, batch)
        # A slot is not handed to the engine, so what a hole or a table's end makes of it is not looked at.
        known = batch.slot_mapping.clamp(min=NO_SLOT)
        check_write(cache.spec, cache.num_blocks, batch.k, batch.v, known, batch.layer)
        if cache.manager is None:
            check_positions(batch, cache.spec.block_size)
        seated = _seat(cache, batch)
        places = _places(batch, seated)
        calls = self._calls(cache, batch, seated)

        def run() -> AttentionResult:
            _write(cache, batch, seated.engine, places)
            return self._answer(cache, batch, calls)

        return run

    def copy_blocks(self, cache: FlexCache, pairs: Sequence[tuple[int, int]]) -> None:
        from kvbench.reference.requests import check_copies

        check_copies(cache.num_blocks, pairs)
        for tensor in (*cache.keys, *cache.values):
            pages = tensor.view(1, tensor.shape[1], cache.num_blocks, cache.spec.block_size, -1)
            for source, target in pairs:
                pages[:, :, target] = pages[:, :, source]

    def _check(self, cache: FlexCache, batch: Batch) -> None:
        from kvbench.reference.attention import check_options as check_values

        check_options(KERNEL, batch.options)
        check_values(batch.options, cache.spec.num_q_heads)
        if batch.q.shape[1:] != (cache.spec.num_q_heads, cache.spec.head_dim):
            raise InvalidRequest(
                f"q is {list(batch.q.shape)}: expected [tokens, {cache.spec.num_q_heads}, {cache.spec.head_dim}]"
            )
        if not 0 <= batch.layer < cache.spec.num_layers:
            raise InvalidRequest(f"layer {batch.layer}: the cache has layers 0..{cache.spec.num_layers - 1}")

    def _calls(self, cache: FlexCache, batch: Batch, seated: Seated) -> list[Call]:
        by_count: dict[int, list[int]] = defaultdict(list)
        for row, count in enumerate(batch.query_start_loc.diff().tolist()):
            if count and int(batch.seq_lens[row]):
                by_count[count].append(row)
        return [self._call(cache, batch, seated, rows, count) for count, rows in by_count.items()]

    def _call(self, cache: FlexCache, batch: Batch, seated: Seated, rows: list[int], count: int) -> Call:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask

        spec, engine = cache.spec, seated.engine
        asked = seated.rows[rows]
        lengths, contexts = (torch.zeros(len(engine.page_table), dtype=torch.int64) for _ in range(2))
        lengths[asked] = batch.seq_lens[rows].long()
        contexts[asked] = lengths[asked] - count
        visible = _visible(lengths, contexts, batch.options)
        longest = -(-int(lengths.max()) // spec.block_size) * spec.block_size
        logical = create_block_mask(
            lambda b, h, q, k: visible(asked[b], h, q, k),
            len(rows),
            None,
            count,
            longest,
            device="cpu",
            BLOCK_SIZE=(QUERIES_PER_BLOCK, spec.block_size),
        )
        mask, physical = engine.convert_logical_block_mask(logical, asked), engine.get_mask_mod(visible)
        mask.mask_mod = lambda b, h, q, k: physical(asked[b], h, q, k)
        arguments: dict[str, Any] = {"block_mask": mask, "scale": batch.options.scale}
        arguments["enable_gqa"] = spec.num_q_heads != spec.num_kv_heads
        if (modify := _score_modifier(contexts, batch.options)) is not None:
            modified = engine.get_score_mod(modify)
            arguments["score_mod"] = lambda score, b, h, q, k: modified(score, asked[b], h, q, k)
        return Call(batch.query_start_loc[rows].long()[:, None] + torch.arange(count), arguments)

    def _answer(self, cache: FlexCache, batch: Batch, calls: list[Call]) -> AttentionResult:
        import torch

        spec = cache.spec
        out = batch.q.new_zeros(len(batch.q), spec.num_q_heads, spec.value_dim)
        lse = None if self._compiled else torch.full((len(batch.q), spec.num_q_heads), -torch.inf)
        for call in calls:
            q = batch.q[call.tokens].transpose(1, 2)
            found, sums = self._flex(q, cache.keys[batch.layer], cache.values[batch.layer], call.arguments)
            out[call.tokens] = found.transpose(1, 2)
            if lse is not None:
                lse[call.tokens] = sums.transpose(1, 2).float()
        return AttentionResult(out, lse)

    def _flex(self, q: Tensor, k: Tensor, v: Tensor, arguments: Mapping[str, Any]) -> tuple[Tensor, Any]:
        import torch
        from torch.nn.attention import flex_attention as flex

        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            warnings.filterwarnings("ignore", message=".*return_lse.*")
            warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)  # the compiler's
            if self._compiled:
                self._attention = self._attention or torch.compile(flex.flex_attention, dynamic=False)
                return self._attention(q, k, v, **arguments), None
            if hasattr(flex, "AuxRequest"):
                out, extra = flex.flex_attention(q, k, v, **arguments, return_aux=flex.AuxRequest(lse=True))
                return out, extra.lse
            out, sums = flex.flex_attention(q, k, v, **arguments, return_lse=True)  # before torch 2.9
            return out, sums


def _seat(cache: FlexCache, batch: Batch) -> Seated:
    """The engine that has the batch's tables: the manager's as it stands, or one that is set up from them."""
    import torch

    if cache.manager is not None:
        if batch.seqs is None:
            raise InvalidRequest("seqs is None: with its own manager this kernel finds tables by the sequence's name")
        rows = [cache.manager.row_of(seq) for seq in batch.seqs]
        return Seated(cache.manager.engine, torch.tensor(rows, dtype=torch.int64))
    num_seqs = len(batch.seq_lens)
    engine = new_engine(cache.num_blocks, cache.spec.block_size, num_seqs, "cpu")
    for row, length in enumerate(batch.seq_lens.tolist()):
        table = batch.block_tables[row, : -(-length // cache.spec.block_size)].long()
        outside = table[(table != HOLE) & ((table < 0) | (table >= cache.num_blocks))]
        if len(outside):
            raise InvalidRequest(
                f"row {row}: block {int(outside[0])} is outside the pool, 0..{cache.num_blocks - 1}, and no hole"
            )
        pages = (table != HOLE).nonzero().flatten()
        engine.page_table[row, : len(table)] = table
        engine.physical_to_logical[row, table[pages]] = pages
    return Seated(engine, torch.arange(num_seqs))


def _places(batch: Batch, seated: Seated) -> list[Place]:
    """Where the batch's tokens go: rows with equally many of them at a time. Padding goes nowhere."""
    import torch

    rows, positions = rows_and_positions(batch)
    written = (batch.slot_mapping[: len(rows)] != NO_SLOT).nonzero().flatten()
    tokens_of: dict[int, list[int]] = defaultdict(list)
    for token, row in zip(written.tolist(), rows[written].tolist(), strict=True):
        tokens_of[row].append(token)
    alike: dict[int, list[int]] = defaultdict(list)
    for row, tokens in tokens_of.items():
        alike[len(tokens)].append(row)
    places = []
    for some in alike.values():
        tokens_of_each = torch.tensor([tokens_of[row] for row in some])
        places.append(Place(tokens_of_each, seated.rows[some], positions[tokens_of_each]))
    return places


def _write(cache: FlexCache, batch: Batch, engine: Any, places: Sequence[Place]) -> None:
    """`assign` what the batch brings."""
    for place in places:
        engine.assign(
            place.rows,
            place.positions,
            batch.k[place.tokens].transpose(1, 2),
            batch.v[place.tokens].transpose(1, 2),
            cache.keys[batch.layer],
            cache.values[batch.layer],
        )


# Masks and scores, in logical positions: b is a batch row of the engine, q a query of the call, k a position.
# --------------------------------------------------------------------------------------------------------------------


def _visible(lengths: Tensor, contexts: Tensor, options: AttentionOptions) -> Callable[..., Tensor]:
    """Which keys a query sees; lengths, contexts: of each row, with the new tokens and without them."""
    if options.window is not None:
        window = options.window
        return lambda b, h, q, k: (k <= contexts[b] + q) & (k > contexts[b] + q - window)
    if options.causal:
        return lambda b, h, q, k: k <= contexts[b] + q
    return lambda b, h, q, k: k < lengths[b]


def _score_modifier(contexts: Tensor, options: AttentionOptions) -> Callable[..., Tensor] | None:
    """What becomes of a score, or None where nothing does."""
    import torch

    softcap = options.softcap
    slopes = None if options.alibi_slopes is None else torch.tensor(options.alibi_slopes)
    if softcap is None and slopes is None:
        return None

    def modify(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if slopes is None else score + slopes[h] * (k - contexts[b] - q)

    return modify


__all__ = ["FlexAdapter"]
