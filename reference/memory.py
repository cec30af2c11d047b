"""KV-cache memory arithmetic: bytes per token, per block and per sequence, and how many sequences fit.

A model is a tuple of layer groups, because groups grow differently: full attention keeps every token, a sliding window
keeps the last ones, latent attention (MLA) keeps one compressed vector a token, linear attention keeps a fixed state a
sequence. Pure Python; all sizes are in bytes, all lengths in tokens, and both are those of one tensor-parallel rank.

Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (SOSP 2023),
sections 3 and 4 (growth of K and V, blocks); DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1 (MLA); Yang et al., "Gated
Delta Networks" (2024) (the state of linear attention).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import UsageError


@dataclass(frozen=True)
class ElementFormat:
    """How the elements of one K or V vector rest in memory.

    bits: per element.
    scale_bytes: scale (and zero point) for every `group` elements of a vector; group None is the whole vector. A scale
        for a whole tensor is not counted: it does not grow with tokens.
    """

    name: str
    bits: int
    scale_bytes: int = 0
    group: int | None = None

    def vector_bytes(self, elements: int) -> int:
        """Bytes of one vector of `elements`: its codes, rounded up to whole bytes, and its scales."""
        scales = ceil_div(elements, self.group or elements) if self.scale_bytes else 0
        return ceil_div(elements * self.bits, 8) + scales * self.scale_bytes


FP8_SCALED = ElementFormat("fp8-scaled", 8, scale_bytes=4)

FORMATS: tuple[ElementFormat, ...] = (
    ElementFormat("float32", 32),
    ElementFormat("bfloat16", 16),
    ElementFormat("float16", 16),
    ElementFormat("fp8", 8),
    FP8_SCALED,  # an fp32 scale for each token and head
    ElementFormat("int8", 8, scale_bytes=4),  # an fp32 scale for each token and head
    ElementFormat("uint8", 8, scale_bytes=8),  # an fp32 scale and zero point for each token and head
    ElementFormat("int4", 4, scale_bytes=4, group=32),  # an fp16 scale and zero point for each 32 elements
)


@dataclass(frozen=True)
class LayerGroup:
    """What layers that grow alike take on one rank.

    token_bytes: of one live token in all the layers.
    window: how many tokens stay live; None is all of them.
    state_bytes: what a sequence takes whatever its length.
    """

    token_bytes: int
    window: int | None = None
    state_bytes: int = 0


def attention(
    layers: int,
    kv_heads: int,
    head_dim: int,
    element: ElementFormat,
    window: int | None = None,
    tensor_parallel: int = 1,
) -> LayerGroup:
    """MHA, GQA, MQA: 2 * layers * kv_heads * head_dim * bytes per element a token, for K and V (PagedAttention, 3)."""
    heads = heads_per_rank(kv_heads, tensor_parallel)
    return LayerGroup(2 * layers * heads * element.vector_bytes(head_dim), window)


def latent_attention(
    layers: int, kv_lora_rank: int, rope_dim: int, element: ElementFormat, index_dim: int = 0
) -> LayerGroup:
    """MLA: layers * (kv_lora_rank + rope_dim) * bytes per element a token, on every rank (DeepSeek-V2, 2.1).

    `index_dim`: sparse attention (DeepSeek-V3.2) also caches an index key of so many fp8 elements with an fp32 scale,
    whatever the format of the rest.
    """
    index = FP8_SCALED.vector_bytes(index_dim) if index_dim else 0
    return LayerGroup(layers * (element.vector_bytes(kv_lora_rank + rope_dim) + index))


def linear_attention(
    layers: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    conv_width: int,
    element: ElementFormat,
    tensor_parallel: int = 1,
) -> LayerGroup:
    """Gated delta rule: a float32 matrix [key_dim, value_dim] a value head, and a short convolution's last inputs.

    Engines do not quantise the convolution's inputs: they take at least 2 bytes each. Nothing grows with tokens.
    """
    key_heads = heads_per_rank(key_heads, tensor_parallel)
    value_heads = heads_per_rank(value_heads, tensor_parallel)
    matrices = value_heads * key_dim * value_dim * 4
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    inputs = channels * (conv_width - 1) * max(2, element.bits // 8)
    return LayerGroup(token_bytes=0, state_bytes=layers * (matrices + inputs))


def heads_per_rank(heads: int, tensor_parallel: int) -> int:
    """Heads that one rank keeps: an equal share, or one head that several ranks repeat."""
    if tensor_parallel < 1 or (heads % tensor_parallel and tensor_parallel % heads):
        raise UsageError(
            f"tensor parallel size {tensor_parallel}: {heads} heads cannot be shared out evenly; "
            f"give a divisor or a multiple of {heads}"
        )
    return max(1, heads // tensor_parallel)


def bytes_per_token(groups: tuple[LayerGroup, ...], length: int | None = None) -> int:
    """Bytes that the next token adds to a sequence of `length`; None: a long one, where every window is full."""
    growing = (g for g in groups if g.window is None or (length is not None and length < g.window))
    return sum(group.token_bytes for group in growing)


def sequence_bytes(groups: tuple[LayerGroup, ...], length: int) -> int:
    """Bytes that a sequence of `length` tokens needs: its live tokens and its fixed state, no blocks."""
    return sum(live_tokens(group, length) * group.token_bytes + group.state_bytes for group in groups)


def uniform_bytes(groups: tuple[LayerGroup, ...], length: int) -> int:
    """Bytes of the same sequence in a cache that keeps every token of every layer, window or not."""
    return sum(length * group.token_bytes + group.state_bytes for group in groups)


def block_bytes(groups: tuple[LayerGroup, ...], block_size: int) -> int:
    """Bytes of `block_size` tokens in all layers."""
    return block_size * sum(group.token_bytes for group in groups)


def paged_bytes(groups: tuple[LayerGroup, ...], length: int, block_size: int, chunk: int = 1) -> int:
    """Bytes that a sequence occupies in whole blocks while the last `chunk` of its `length` tokens are computed."""
    return sum(
        live_blocks(group, length, block_size, chunk) * block_size * group.token_bytes + group.state_bytes
        for group in groups
    )


def live_tokens(group: LayerGroup, length: int) -> int:
    """Tokens whose K/V a query after `length` tokens may still read."""
    return length if group.window is None else min(length, group.window)


def live_blocks(group: LayerGroup, length: int, block_size: int, chunk: int = 1) -> int:
    """Blocks that a group holds at most while the last `chunk` of `length` tokens are computed.

    Behind a window: the chunk's first query sees window - 1 keys before it, and the live stretch may start anywhere in
    a block, which costs one more.
    """
    blocks = ceil_div(length, block_size)
    if group.window is None:
        return blocks
    return min(blocks, ceil_div(group.window - 1 + chunk, block_size) + 1)


def rounding_share(groups: tuple[LayerGroup, ...], length: int, block_size: int) -> float:
    """Share (0..1) of a sequence's blocks that holds no live token: what whole blocks cost (internal fragmentation)."""
    occupied = paged_bytes(groups, length, block_size)
    return 1 - sequence_bytes(groups, length) / occupied if occupied else 0.0


def sequences_that_fit(memory: int, bytes_per_sequence: int) -> int:
    """Whole sequences in `memory` bytes, which is what weights, activations and the rest have left; 0 if nothing is."""
    return max(0, memory) // bytes_per_sequence


def ceil_div(numerator: int, denominator: int) -> int:
    """Integer division, rounded up."""
    return -(-numerator // denominator)
