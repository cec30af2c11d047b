"""The content canary: K/V rows that say who they are, and queries that make attention hand one of them out.

Every row has an identity, a 64-bit number. K spells it as a code of +-1, V as small integers. A query that is a large
multiple of one row's code puts all the weight of the softmax on that row, so what comes out of attention *is* that
row's V: decoded, it says which row was read. A wrong K changes which row comes back, a wrong V names the row that was
taken instead. Nothing needs to be known about the engine or the layout of its cache.

Codes and digits are exact in float32, bfloat16, float16 and fp8, and digits survive rounding to 8-bit integer codes.
Probing works with the default scale or another given one, without softcap, ALiBi or sinks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Identities = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_KEY, _VALUE, _TOKEN, _UNWRITTEN = 1, 2, 3, 4
_DIGITS = 16  # digits of 4 bits that spell 64 bits
_FULL_CODE = 64  # from this head dimension on codes are random and far apart


# --------------------------------------------------------------------------------------------------------------------
# Identities
# --------------------------------------------------------------------------------------------------------------------


def _mix(word: int) -> int:
    """One 64-bit word to another, one to one and without visible pattern (Steele et al., SplitMix, 2014)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def _mix_all(words: Identities) -> Identities:
    """`_mix` of every word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Identities = words ^ (words >> np.uint64(31))
    return mixed


def _salt(*parts: int) -> int:
    word = 0
    for part in parts:
        word = _mix((word + part + 1) * _GOLDEN & _MASK)
    return word


def chain_root(namespace: str | None) -> int:
    """Identity before the first token of a sequence in `namespace`."""
    named = b"-" if namespace is None else b"+" + namespace.encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little")


def extend_chain(last: int, tokens: Iterable[int]) -> list[int]:
    """Identities of the rows of `tokens`, which follow a row (or root) of identity `last`.

    A row's identity depends on the namespace, on all tokens up to its own, and so on its position.
    """
    salt = _salt(_TOKEN)
    identities = []
    for token in tokens:
        last = _mix((last + (token + 1) * _GOLDEN & _MASK) ^ salt)
        identities.append(last)
    return identities


def chain_identities(tokens: Iterable[int], namespace: str | None = None) -> list[int]:
    """Identities of all rows of a sequence with `tokens` under `namespace`."""
    return extend_chain(chain_root(namespace), tokens)


def unwritten_identities(slots: Iterable[int], generation: int = 0) -> list[int]:
    """Identities for rows that fill memory which nobody owns, one a slot; `generation` tells fillings apart."""
    return [_salt(_UNWRITTEN, generation, slot) for slot in slots]


def as_identities(identities: Any) -> Identities:
    """Python integers, or arrays of them, as an array of unsigned 64-bit numbers of the same shape."""
    return np.asarray(identities, dtype=np.uint64)


# --------------------------------------------------------------------------------------------------------------------
# Rows
# --------------------------------------------------------------------------------------------------------------------


def _salted(identities: Identities, kind: int, layer: int, heads: Integers) -> Identities:
    """A word for every identity and head. identities: [...]; heads: broadcastable against it."""
    salts = as_identities([_salt(kind, layer, int(head)) for head in np.unique(heads)])
    places = np.searchsorted(np.unique(heads), heads)
    word: Identities = _mix_all(identities) ^ salts[places]
    return word


def _codes(identities: Identities, layer: int, heads: Integers, head_dim: int) -> Floats:
    """+-1 codes [..., head_dim] of `identities` [...] in `heads` [...]."""
    words = _salted(identities, _KEY, layer, heads)
    pieces = -(-head_dim // _FULL_CODE)
    if head_dim < _FULL_CODE:
        # Few bits: keep the low ones of a one-to-one image, so that distinct identities stay as distinct as they were.
        wide = words[..., None]
    else:
        wide = np.stack([_mix_all(words + np.uint64(piece * _GOLDEN & _MASK)) for piece in range(pieces)], axis=-1)
    places = np.arange(min(head_dim, _FULL_CODE), dtype=np.uint64)
    bits = (wide[..., None] >> places) & np.uint64(1)
    flat = bits.reshape(*words.shape, bits.shape[-2] * bits.shape[-1])[..., :head_dim]
    codes: Floats = flat.astype(np.float32) * np.float32(2) - np.float32(1)
    return codes


def key_codes(identities: Any, num_kv_heads: int, head_dim: int, layer: int = 0) -> Floats:
    """K rows [n, num_kv_heads, head_dim] of +-1 for identities [n]."""
    ids = as_identities(identities)
    heads = np.arange(num_kv_heads)
    return _codes(np.repeat(ids[:, None], num_kv_heads, axis=1), layer, np.tile(heads, (len(ids), 1)), head_dim)


def _digits(identities: Identities, layer: int, heads: Integers, head_dim_v: int) -> Floats:
    """Digits -8..7 [..., head_dim_v]: the salted identity once, then images of it again and again."""
    words = _salted(identities, _VALUE, layer, heads)
    pieces = []
    for piece in range(-(-head_dim_v // _DIGITS)):
        spelled = words if piece == 0 else _mix_all(words + np.uint64(piece * _GOLDEN & _MASK))
        shifts = np.arange(_DIGITS, dtype=np.uint64) * np.uint64(4)
        pieces.append((spelled[..., None] >> shifts) & np.uint64(15))
    flat = np.concatenate(pieces, axis=-1)[..., :head_dim_v]
    digits: Floats = flat.astype(np.float32) - np.float32(8)
    return digits


def value_digits(identities: Any, num_kv_heads: int, head_dim_v: int, layer: int = 0) -> Floats:
    """V rows [n, num_kv_heads, head_dim_v] of whole numbers in -8..7 for identities [n]."""
    ids = as_identities(identities)
    heads = np.arange(num_kv_heads)
    return _digits(np.repeat(ids[:, None], num_kv_heads, axis=1), layer, np.tile(heads, (len(ids), 1)), head_dim_v)


# --------------------------------------------------------------------------------------------------------------------
# Probes
# --------------------------------------------------------------------------------------------------------------------


def reliable_rows(head_dim: int) -> int:
    """Among how many hashed rows a probe finds the right one: two of them share a code less than once in 10**6."""
    return max(1, min(1 << 20, int(math.sqrt(2e-6 * 2.0 ** min(head_dim, _FULL_CODE)))))


def _nearest(head_dim: int, rows: int) -> int:
    """In how many elements the codes of `rows` rows differ from another code at least (less than once in 10**9)."""
    probability, tail = 0.5**head_dim, 0.0
    for distance in range(head_dim + 1):
        tail += probability * math.comb(head_dim, distance)
        if tail * rows > 1e-9:
            return max(1, distance)
    return max(1, head_dim)


def probe_multiple(head_dim: int, rows: int, scale: float | None = None) -> float:
    """The factor, a power of two, that makes a code a query which hides all but one of `rows` rows.

    What `rows` rows leak together stays below 2**-8 of a digit. Products with a code stay below 2**15 where scores are
    not scaled by less than head_dim**-0.5, so that float16 holds them.
    """
    scale = head_dim**-0.5 if scale is None else scale
    needed = math.log(max(rows, 1)) + math.log(16 * 2**8)
    multiple = needed / (2 * _nearest(head_dim, max(rows, 1)) * scale)
    return float(2.0 ** math.ceil(math.log2(multiple)))


def probe_queries(
    expected: Any, num_kv_heads: int, head_dim: int, rows: int, layer: int = 0, scale: float | None = None
) -> Floats:
    """Queries [num_tokens, num_q_heads, head_dim] that read the rows `expected` [num_tokens, num_q_heads].

    rows: how many rows compete for the weight: the longest context.
    """
    ids = as_identities(expected)
    codes = _codes(ids, layer, _kv_heads(ids, num_kv_heads), head_dim)
    queries: Floats = codes * np.float32(probe_multiple(head_dim, rows, scale))
    return queries


def _kv_heads(identities: Identities, num_kv_heads: int) -> Integers:
    """The KV head of each query head, for identities [num_tokens, num_q_heads]."""
    num_q_heads = identities.shape[1]
    heads: Integers = np.broadcast_to(np.arange(num_q_heads) // (num_q_heads // num_kv_heads), identities.shape)
    return heads


def distinct_codes(expected: Any, competing: Any, head_dim: int) -> npt.NDArray[np.bool_]:
    """Which of the rows `expected` [...] share their code with no other of the rows `competing` [n].

    Only short codes (head_dim < 64) can collide; a probe of a row that is not distinct would read a mixture.
    """
    ids, others = as_identities(expected), np.unique(as_identities(competing))
    if head_dim >= _FULL_CODE:
        return np.ones(ids.shape, dtype=np.bool_)
    mask = np.uint64((1 << head_dim) - 1)
    codes, counts = np.unique(_mix_all(others) & mask, return_counts=True)
    places = np.minimum(np.searchsorted(codes, _mix_all(ids) & mask), len(codes) - 1)
    alone: npt.NDArray[np.bool_] = counts[places] == 1
    return alone


def probe_positions(
    first: Sequence[int], count: Sequence[int], num_q_heads: int, num_kv_heads: int, turn: int = 0
) -> Integers:
    """Which position each head of each query token probes: [num_tokens, num_q_heads].

    Token t may probe positions first[t] .. first[t] + count[t] - 1 (-1 where that is none). Heads and tokens take
    different ones and further turns go on from there: `turns_to_cover(n, ...)` turns of one token read n rows in
    every KV head.
    """
    ratio = num_q_heads // num_kv_heads
    tokens = len(count)
    steps = np.arange(tokens)[:, None] * ratio + np.arange(num_q_heads)[None, :] % ratio + turn * tokens * ratio
    counts, firsts = np.asarray(count)[:, None], np.asarray(first)[:, None]
    # Counted from the newest position back: it is the one most often wrong.
    positions = firsts + counts - 1 - steps % np.maximum(counts, 1)
    result: Integers = np.where(counts > 0, positions, -1)
    return result


def turns_to_cover(rows: int, num_q_heads: int, num_kv_heads: int) -> int:
    """How many one-token probes read each of `rows` rows in every KV head."""
    return -(-rows * num_kv_heads // num_q_heads)


# --------------------------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Misread:
    """A probe that did not read the row it should.

    token, head: which probe. expected, found: identities (found None: no known row). words: what was read, in words.
    """

    token: int
    head: int
    expected: int
    found: int | None
    words: str


@dataclass
class RowBook:
    """Remembers every identity that was written, so that what is read can be told in words.

    num_kv_heads, head_dim_v, num_layers: of the cache that the rows are written to.
    """

    num_kv_heads: int
    head_dim_v: int
    num_layers: int = 1
    _names: dict[int, str] = field(default_factory=dict)
    _spelled: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    _indexed: int = 0

    def add(self, identities: Iterable[int], names: Iterable[str]) -> None:
        """Remember rows with what people call them ("position 17 of a")."""
        for identity, name in zip(identities, names, strict=True):
            self._names.setdefault(int(identity), name)

    def add_sequence(self, identities: Sequence[int], seq: str, first: int = 0) -> None:
        """Remember the rows of a sequence, from position `first` on."""
        self.add(identities, (f"position {first + place} of {seq}" for place in range(len(identities))))

    def name(self, identity: int) -> str:
        """What people call the row."""
        return self._names.get(int(identity), f"an unknown row ({int(identity):016x})")

    def find(self, digits: npt.NDArray[Any]) -> tuple[int, int, int] | None:
        """The (identity, layer, KV head) that `digits` [head_dim_v] spell, if it is one of the remembered rows."""
        self._index()
        return self._spelled.get(np.rint(digits).astype(np.int8).tobytes())

    def _index(self) -> None:
        """Spell the rows that were added since the last search."""
        new = list(self._names)[self._indexed :]
        self._indexed = len(self._names)
        for layer in range(self.num_layers if new else 0):
            digits = value_digits(new, self.num_kv_heads, self.head_dim_v, layer).astype(np.int8)
            for identity, heads in zip(new, digits, strict=True):
                for head in range(self.num_kv_heads):
                    self._spelled.setdefault(heads[head].tobytes(), (identity, layer, head))


def misreads(out: Any, expected: Any, book: RowBook, layer: int = 0, limit: int = 8) -> list[Misread]:
    """The probes whose output is not the row they should read, at most `limit` of them told in words.

    out: [num_tokens, num_q_heads, head_dim_v]. expected: identities [num_tokens, num_q_heads].
    """
    found = np.asarray(out, dtype=np.float32)
    ids = as_identities(expected)
    right = _digits(ids, layer, _kv_heads(ids, book.num_kv_heads), found.shape[-1])
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(found - right) < 0.5).all(axis=-1)
    heads = _kv_heads(ids, book.num_kv_heads)
    result = []
    for token, head in np.argwhere(wrong)[:limit]:
        identity, words = _tell(found[token, head], right[token, head], book, layer, int(heads[token, head]))
        result.append(Misread(int(token), int(head), int(ids[token, head]), identity, words))
    return result


def _tell(found: Floats, right: Floats, book: RowBook, layer: int, kv_head: int) -> tuple[int | None, str]:
    """Which known row `found` [head_dim_v] is, and what it is in words."""
    if not np.isfinite(found).all():
        return None, f"{int((~np.isfinite(found)).sum())} of {found.size} elements that are not finite"
    if not found.any():
        return None, "zeros"
    whole = (np.abs(found) < 100).all()
    if whole and (row := book.find(found)) is not None:
        identity, found_layer, found_head = row
        place = "" if found_layer == layer else f" from layer {found_layer}"
        place += "" if found_head == kv_head else f" from KV head {found_head} instead of {kv_head}"
        return identity, book.name(identity) + place
    same = np.abs(found - right) < 0.5
    if same.sum() > found.size // 2:
        places = np.flatnonzero(~same)
        return None, f"the right row but for elements {_ranges(places)}"
    mixed = np.abs(found - np.rint(found)).max() > 0.1
    return None, "a mixture of rows" if mixed else "a row that nobody wrote"


def _ranges(places: npt.NDArray[np.intp]) -> str:
    """Sorted numbers in words: "0, 4-7, 12"."""
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


__all__ = [
    "Misread", "RowBook", "as_identities", "chain_identities", "chain_root", "distinct_codes", "extend_chain",
    "key_codes", "misreads", "probe_multiple", "probe_positions", "probe_queries", "reliable_rows", "turns_to_cover",
    "unwritten_identities", "value_digits",
]  # fmt: skip
