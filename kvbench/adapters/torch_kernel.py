"""Paged attention in plain torch, as a careful user would write it: no loop over tokens, no copy of a whole context.

The keys of a row are gathered in pieces that stay in the processor's cache, and the softmax is carried from piece to
piece. With running maximum m, sum l and weighted values a, a piece with scores s and values v makes

    m' = max(m, max s)    l' = l exp(m - m') + sum exp(s - m')    a' = a exp(m - m') + exp(s - m') v

and at the end out = a / l, lse = m + log l. A sink is where m starts, with l = 1. Sources: FlashAttention-2, Dao 2023,
section 3.1; Flash-Decoding, Dao et al. 2023, for few queries over a long context.

Arithmetic is in float32 whatever the storage. Decoding rows of similar length share their pieces; a shared piece that
is longer than a row repeats the row's last token and masks it, so that no slot is read that no query sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from kvbench.errors import Unsupported
from kvbench.interface import NO_SLOT, AttentionOptions, AttentionResult, Batch, CacheManager, CacheSpec
from kvbench.reference import requests
from kvbench.reference.attention import first_visible

BYTES_AT_A_TIME = 4 << 20
"""K and V of one piece, in float32: a share of the last-level cache."""

QUERIES_AT_A_TIME = 64
"""Bounds the scores of a prefill: this many queries a piece of keys."""

LOWEST = torch.finfo(torch.float32).min

STORAGES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class TorchCache:
    """K and V of each layer, head by head: [num_kv_heads, num_blocks * block_size, dim].

    Heads come first so that what is gathered is ready to be multiplied.
    """

    spec: CacheSpec
    num_blocks: int
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def keys_at_a_time(self) -> int:
        """Keys of one piece, over all its rows."""
        spec = self.spec
        return max(64, BYTES_AT_A_TIME // (4 * spec.num_kv_heads * (spec.head_dim + spec.value_dim)))


@dataclass(frozen=True)
class Piece:
    """Some keys of a group of R rows, C of each.

    slots: int64 [R * C]; positions: int64 [R, C], at or past a row's seq_len where they are padding.
    """

    slots: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Group:
    """R rows with Q queries each, answered together: one prefilling row, or decoding rows of similar length.

    tokens: int64 [R, Q], where the queries lie in the batch; positions: int64 [R, Q]; seq_lens: int64 [R].
    """

    tokens: Tensor
    positions: Tensor
    seq_lens: Tensor
    pieces: tuple[Piece, ...]


class TorchKernel:
    """Implements `AttentionKernel` and the operations write, attend, copy_blocks and plan, with all options."""

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> TorchCache:
        """A cache of zeros. Raises `Unsupported` for storage other than the three dtypes declared."""
        requests.check_spec(spec, num_blocks)
        for dtype in (spec.precision.compute, spec.precision.storage):
            if dtype not in STORAGES:
                raise Unsupported(f"precision {spec.precision.name}: {dtype} is not one of {', '.join(STORAGES)}")
        storage = getattr(torch, spec.precision.storage)

        def zeros(dim: int) -> tuple[Tensor, ...]:
            shape = (spec.num_kv_heads, num_blocks * spec.block_size, dim)
            return tuple(torch.zeros(shape, dtype=storage, device=spec.device) for _ in range(spec.num_layers))

        return TorchCache(spec, num_blocks, zeros(spec.head_dim), zeros(spec.value_dim))

    def forward(self, cache: TorchCache, batch: Batch) -> AttentionResult:
        return self.plan(cache, batch)()

    def write(self, cache: TorchCache, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int = 0) -> None:
        requests.check_write(cache.spec, cache.num_blocks, k, v, slot_mapping, layer)
        _write(cache, k, v, slot_mapping, layer)

    def attend(self, cache: TorchCache, batch: Batch) -> AttentionResult:
        requests.check_attend(cache.spec, cache.num_blocks, batch)
        return _attend(cache, batch, _groups(cache, batch))

    def copy_blocks(self, cache: TorchCache, pairs: Sequence[tuple[int, int]]) -> None:
        requests.check_copies(cache.num_blocks, pairs)
        block_size = cache.spec.block_size
        for sources, targets in _independent(pairs):
            for layer in (*cache.keys, *cache.values):
                blocks = layer.view(-1, cache.num_blocks, block_size, layer.shape[-1])
                blocks[:, targets] = blocks[:, sources]

    def plan(self, cache: TorchCache, batch: Batch) -> Callable[[], AttentionResult]:
        """Checks the batch and finds its slots once."""
        requests.check_forward(cache.spec, cache.num_blocks, batch)
        return partial(_forward, cache, batch, _groups(cache, batch))


def _forward(cache: TorchCache, batch: Batch, groups: Sequence[Group]) -> AttentionResult:
    _write(cache, batch.k, batch.v, batch.slot_mapping, batch.layer)
    return _attend(cache, batch, groups)


def _write(cache: TorchCache, k: Tensor, v: Tensor, slot_mapping: Tensor, layer: int) -> None:
    k, v = k[: len(slot_mapping)], v[: len(slot_mapping)]
    written = slot_mapping != NO_SLOT
    if not written.all():
        slot_mapping, k, v = slot_mapping[written], k[written], v[written]
    keys, values = cache.keys[layer], cache.values[layer]
    keys.index_copy_(1, slot_mapping, k.transpose(0, 1).to(keys.dtype))
    values.index_copy_(1, slot_mapping, v.transpose(0, 1).to(values.dtype))


def _independent(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of copies that can be made at once: none reads or writes a block that an earlier one of its run writes."""
    sources: list[int] = []
    targets: list[int] = []
    for source, target in pairs:
        if source in targets or target in targets:
            yield sources, targets
            sources, targets = [], []
        sources.append(source)
        targets.append(target)
    if sources:
        yield sources, targets


# What to read, found once a batch
# --------------------------------------------------------------------------------------------------------------------


def _groups(cache: TorchCache, batch: Batch) -> list[Group]:
    """Rows with something to answer and something to see: prefilling ones alone, decoding ones with their likes."""
    starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    q_lens = [end - start for start, end in pairwise(starts)]
    firsts = [first_visible(n, q_len, batch.options) for n, q_len in zip(lengths, q_lens, strict=True)]
    busy = [row for row, n in enumerate(lengths) if q_lens[row] and n > firsts[row]]
    groups = [[row] for row in busy if q_lens[row] > 1]
    room = 0
    for row in sorted((row for row in busy if q_lens[row] == 1), key=lambda row: firsts[row] - lengths[row]):
        if room == 0:
            groups.append([])
            room = max(1, cache.keys_at_a_time // (lengths[row] - firsts[row]))
        groups[-1].append(row)
        room -= 1
    return [_group(cache, batch, rows, firsts, q_lens[rows[0]]) for rows in groups]


def _group(cache: TorchCache, batch: Batch, rows: list[int], firsts: list[int], q_len: int) -> Group:
    device = batch.q.device
    seq_lens = batch.seq_lens[rows].long()
    first = torch.tensor([firsts[row] for row in rows], device=device)
    queries = torch.arange(q_len, device=device)
    longest = int((seq_lens - first).max())
    width = max(1, cache.keys_at_a_time // len(rows))
    pieces = []
    for begin in range(0, longest, width):
        positions = first[:, None] + torch.arange(begin, min(begin + width, longest), device=device)
        live = positions.minimum(seq_lens[:, None] - 1)
        blocks = batch.block_tables[rows].long().gather(1, live // cache.spec.block_size)
        slots = blocks * cache.spec.block_size + live % cache.spec.block_size
        pieces.append(Piece(slots.flatten(), positions))
    return Group(
        tokens=batch.query_start_loc[rows].long()[:, None] + queries,
        positions=(seq_lens - q_len)[:, None] + queries,
        seq_lens=seq_lens,
        pieces=tuple(pieces),
    )


# Attention
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Softmax:
    """The running softmax of R x Q queries, float32, changed in place.

    m, l: [num_kv_heads, R, G, Q, 1]; a: [num_kv_heads, R, G, Q, head_dim_v], G query heads to a K/V head.
    """

    m: Tensor
    l: Tensor
    a: Tensor

    def part(self, queries: slice) -> Softmax:
        """The same memory, for some of the queries."""
        return Softmax(self.m[:, :, :, queries], self.l[:, :, :, queries], self.a[:, :, :, queries])

    def add(self, scores: Tensor, v: Tensor) -> None:
        """Take in scores [num_kv_heads, R, G, Q, C], overwriting them, and v [num_kv_heads, R, C, head_dim_v]."""
        m = torch.maximum(self.m, scores.amax(-1, keepdim=True))
        finite = m.clamp_min(LOWEST)  # -inf where nothing was visible yet, and -inf - -inf would be NaN
        weights = scores.sub_(finite).exp_()
        keep = (self.m - finite).exp_()
        self.m.copy_(m)
        self.l.mul_(keep).add_(weights.sum(-1, keepdim=True))
        self.a.mul_(keep).add_((weights.flatten(2, 3) @ v).view_as(self.a))


def _attend(cache: TorchCache, batch: Batch, groups: Sequence[Group]) -> AttentionResult:
    spec, options = cache.spec, batch.options
    num_tokens = len(batch.q)
    out = batch.q.new_zeros(num_tokens, spec.num_q_heads, spec.value_dim)
    unseen = torch.full((spec.num_q_heads,), -torch.inf) if options.sinks is None else torch.tensor(options.sinks)
    lse = unseen.float().to(batch.q.device).repeat(num_tokens, 1)
    for group in groups:
        state = _answer(cache, batch, group, unseen)
        tokens = group.tokens.flatten()
        found = state.a / state.l.clamp_min(torch.finfo(torch.float32).tiny)
        out[tokens] = found.permute(1, 3, 0, 2, 4).reshape(len(tokens), spec.num_q_heads, -1).to(out.dtype)
        lse[tokens] = (state.m + state.l.log()).permute(1, 3, 0, 2, 4).reshape(len(tokens), -1)
    return AttentionResult(out, lse)


def _answer(cache: TorchCache, batch: Batch, group: Group, unseen: Tensor) -> Softmax:
    """The softmax of one group over all its pieces. unseen: [num_q_heads], where m starts."""
    spec, options = cache.spec, batch.options
    rows, q_len = group.tokens.shape
    ratio = spec.num_q_heads // spec.num_kv_heads
    shape = (spec.num_kv_heads, rows, ratio, q_len)
    scale = spec.head_dim**-0.5 if options.scale is None else options.scale
    q = batch.q[group.tokens.flatten()].float().mul_(scale)
    q = q.view(rows, q_len, spec.num_kv_heads, ratio, spec.head_dim).permute(2, 0, 3, 1, 4)
    state = Softmax(
        m=unseen.to(q).view(-1, 1, ratio, 1, 1).expand(*shape, 1).clone(),
        l=q.new_full((*shape, 1), 0.0 if options.sinks is None else 1.0),
        a=q.new_zeros(*shape, spec.value_dim),
    )
    for piece in group.pieces:
        k = _gather(cache.keys[batch.layer], piece).transpose(2, 3)
        v = _gather(cache.values[batch.layer], piece)
        for begin in range(0, q_len, QUERIES_AT_A_TIME):
            queries = slice(begin, begin + QUERIES_AT_A_TIME)
            visible = _visible(group, piece, queries, options)
            if visible is not None and not visible.any():
                continue
            some = q[:, :, :, queries]
            scores = (some.flatten(2, 3) @ k).view(*some.shape[:-1], -1)
            _modify(scores, group, piece, queries, options)
            if visible is not None:
                scores.masked_fill_(~visible[:, None], -torch.inf)
            state.part(queries).add(scores, v)
    return state


def _gather(layer: Tensor, piece: Piece) -> Tensor:
    """Float32 K or V of a piece, [num_kv_heads, R, C, dim]."""
    return layer.index_select(1, piece.slots).float().view(-1, *piece.positions.shape, layer.shape[-1])


def _visible(group: Group, piece: Piece, queries: slice, options: AttentionOptions) -> Tensor | None:
    """Which keys of a piece each query sees, [R, Q, C]; None if all see all."""
    keys, seekers = piece.positions[:, None, :], group.positions[:, queries, None]
    visible = keys < group.seq_lens[:, None, None]
    if options.causal or options.window is not None:
        visible = visible & (keys <= seekers)
    if options.window is not None:
        visible = visible & (keys > seekers - options.window)
    return None if visible.all() else visible


def _modify(scores: Tensor, group: Group, piece: Piece, queries: slice, options: AttentionOptions) -> None:
    """Softcap and ALiBi, in place. scores: [num_kv_heads, R, G, Q, C]."""
    if options.softcap is not None:
        scores.div_(options.softcap).tanh_().mul_(options.softcap)
    if options.alibi_slopes is not None:
        slopes = torch.tensor(options.alibi_slopes, device=scores.device).view(-1, 1, scores.shape[2], 1, 1)
        distance = piece.positions[:, None, :] - group.positions[:, queries, None]
        scores.add_(slopes * distance[:, None])


__all__ = ["TorchCache", "TorchKernel"]
