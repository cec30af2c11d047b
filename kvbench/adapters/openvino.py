"""OpenVINO's `PagedAttentionExtension` on the CPU, as a kernel.

The operation is run in a model that holds nothing else. It writes a batch's K/V and attends in one go, so there is
`forward` and no half of it. Where a token is written follows from its row's past length and blocks: a slot mapping that
says anything else is refused. The layout of a block, the scales of a quantised one included, is the engine's own.

An option is a constant of the model: a cache's model is compiled once for each combination of options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.adapters.declared import check_cache, check_options, check_positions, slots_by_position
from kvbench.errors import AdapterError, InvalidRequest, Unsupported
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
    KernelCapabilities,
    Limit,
    PoolSpec,
    Precision,
    Sizes,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

BLOCK_SIZE = 32

UINT8 = Precision("u8", "float32", "uint8")

INPUTS = (
    "query", "key", "value", "key_cache", "value_cache", "past_lens", "subsequence_begins", "block_indices",
    "block_indices_begins", "scale", "sliding_window", "alibi_slopes", "max_context_len", "score_aggregation_window",
    "rotated_block_indices", "rotation_deltas", "rotation_trig_lut", "xattention_threshold", "xattention_block_size",
    "xattention_stride", "sinks", "adaptive_rkv_start_size", "adaptive_rkv_evictable_sizes",
    "adaptive_rkv_diversity_block_set_indices", "adaptive_rkv_diversity_block_set_indices_begins", "token_type_ids",
    "qq_bias", "qq_bias_begins",
)  # fmt: skip
"""The operation's inputs, in its order."""


def capabilities_here() -> KernelCapabilities:
    """What the operation does on this machine: bf16 blocks need a processor with bf16 instructions.

    A head_dim_v of its own is not offered: with quantised blocks, one that is a quarter of head_dim or less makes the
    operation write past its buffers (2026.4.1).
    """
    return KernelCapabilities(
        precisions=(FLOAT32, *((BFLOAT16,) if _multiplies_bf16() else ()), FLOAT16, UINT8),
        block_sizes=Sizes((BLOCK_SIZE,)),
        options=frozenset({"scale", "window", "alibi", "sinks"}),
        operations=frozenset({"copy_blocks", "plan"}),
        limits=(
            Limit("unchecked_ids", "the operation trusts block ids; one outside the pool ends the process"),
            Limit("full_context_queries", "a negative past length ends the process"),
        ),
    )


def _multiplies_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)


def _version() -> str:
    try:
        return metadata.version("openvino")
    except metadata.PackageNotFoundError:
        return "not installed"


class OpenVinoAdapter:
    """`openvino.op._PagedAttentionExtension` on the CPU."""

    name = "openvino"
    version = _version()
    about = "OpenVINO's PagedAttention operation on the CPU"

    def __init__(self) -> None:
        self.capabilities = Capabilities(
            kernel=capabilities_here(),
            config=(
                ConfigOption(
                    "key_groups",
                    ("token", "channel"),
                    "what shares a scale in quantised keys; channel is what OpenVINO does by itself",
                ),
            ),
        )

    def manager(self, spec: PoolSpec, config: Mapping[str, str]) -> CacheManager:
        raise NotImplementedError("the openvino adapter declares no manager")

    def kernel(self, config: Mapping[str, str]) -> AttentionKernel:
        return OpenVinoKernel(config.get("key_groups", "token"))


def load_openvino() -> Any:
    """The package, imported. Raises `AdapterError` where it is missing or has no paged attention."""
    try:
        import openvino
    except ImportError as error:
        raise AdapterError(f"adapter openvino: {error}; pip install 'kvbench[openvino]'") from None
    if not hasattr(openvino.op, "_PagedAttentionExtension"):
        raise AdapterError(
            f"adapter openvino: version {_version()} has no paged attention; pip install -U 'kvbench[openvino]'"
        )
    return openvino


@dataclass(frozen=True)
class OpenVinoCache:
    """keys, values: an `openvino.Tensor` a layer, of whatever shape the compiled model asks for.

    Each holds one block more than `num_blocks`: zeros, which stand in for holes.
    """

    spec: CacheSpec
    num_blocks: int
    keys: tuple[Any, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Ready:
    """A request whose inputs are set; it points at `tensors`, which must live as long. Tokens of no row have `out`."""

    request: Any
    tensors: Mapping[str, Any]
    out: Tensor

    def __call__(self) -> AttentionResult:
        import torch

        self.request.infer()
        found = torch.from_numpy(self.request.get_output_tensor(0).data)
        answer = self.out.clone()
        answer.view(len(answer), -1)[: len(found)] = found.view(answer.dtype)  # bf16 comes as the bits of f16
        return AttentionResult(answer)


class OpenVinoKernel:
    """Models of one operation each, compiled for the CPU. key_groups: as the adapter's setting."""

    def __init__(self, key_groups: str = "token") -> None:
        self._openvino = load_openvino()
        self._core = self._openvino.Core()
        self._key_groups = key_groups
        self._declared = capabilities_here()
        self._models: dict[tuple[CacheSpec, AttentionOptions], Any] = {}
        self._requests: dict[tuple[CacheSpec, AttentionOptions], Any] = {}

    def create(self, spec: CacheSpec, num_blocks: int, manager: CacheManager | None = None) -> OpenVinoCache:
        from kvbench.reference.requests import check_spec

        check_spec(spec, num_blocks)
        check_cache(self._declared, spec)
        model = self._model(spec, AttentionOptions())
        keys, values = (
            tuple(self._zeros(model.input(name), num_blocks + 1) for _ in range(spec.num_layers))
            for name in ("key_cache", "value_cache")
        )
        return OpenVinoCache(spec, num_blocks, keys, values)

    def forward(self, cache: OpenVinoCache, batch: Batch) -> AttentionResult:
        """In one request for all calls with the same options: making one costs more than a small call."""
        key = (cache.spec, batch.options)
        self._check(cache.spec, cache.num_blocks, batch)
        if key not in self._requests:
            self._requests[key] = self._model(*key).create_infer_request()
        return self._ready(self._requests[key], cache, batch)()

    def plan(self, cache: OpenVinoCache, batch: Batch) -> Callable[[], AttentionResult]:
        """In a request of its own, whose inputs are set once."""
        self._check(cache.spec, cache.num_blocks, batch)
        return self._ready(self._model(cache.spec, batch.options).create_infer_request(), cache, batch)

    def _ready(self, request: Any, cache: OpenVinoCache, batch: Batch) -> Callable[[], AttentionResult]:
        """Set all inputs; the call that remains."""
        num_tokens = int(batch.query_start_loc[-1])
        out = batch.q.new_zeros(len(batch.q), cache.spec.num_q_heads, cache.spec.value_dim)
        if num_tokens == 0:
            return lambda: AttentionResult(out)
        tensors = {"key_cache": cache.keys[batch.layer], "value_cache": cache.values[batch.layer]}
        for name, tokens in (("query", batch.q), ("key", batch.k), ("value", batch.v)):
            tensors[name] = self._shared(tokens[:num_tokens].reshape(num_tokens, -1))
        tensors |= {
            name: self._openvino.Tensor(numbers) for name, numbers in _metadata(batch, cache.num_blocks).items()
        }
        for name, tensor in tensors.items():
            request.set_tensor(name, tensor)
        return Ready(request, tensors, out)

    def copy_blocks(self, cache: OpenVinoCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Whole blocks as bytes: scales rest in the rows that they scale."""
        from kvbench.reference.requests import check_copies

        check_copies(cache.num_blocks, pairs)
        for tensor in (*cache.keys, *cache.values):
            blocks = tensor.data.reshape(cache.num_blocks + 1, -1)
            for source, target in pairs:
                blocks[target] = blocks[source]

    def _check(self, spec: CacheSpec, num_blocks: int, batch: Batch) -> None:
        from kvbench.reference.attention import check_options as check_values
        from kvbench.reference.requests import check_write

        check_options(self._declared, batch.options)
        check_values(batch.options, spec.num_q_heads)
        check_write(spec, num_blocks, batch.k, batch.v, batch.slot_mapping, batch.layer)
        if batch.q.dtype != batch.k.dtype or batch.q.shape[1:] != (spec.num_q_heads, spec.head_dim):
            raise InvalidRequest(
                f"q is {batch.q.dtype} {list(batch.q.shape)}: expected {batch.k.dtype} "
                f"[{len(batch.k)}, {spec.num_q_heads}, {spec.head_dim}]"
            )
        check_positions(batch, BLOCK_SIZE)
        new = batch.query_start_loc.diff()
        if (new > batch.seq_lens).any():
            raise Unsupported(f"rows of {new.tolist()} new tokens in contexts of {batch.seq_lens.tolist()}")
        slots = slots_by_position(batch, BLOCK_SIZE)
        if ((batch.slot_mapping[: len(slots)] == NO_SLOT) & (slots >= 0)).any():
            raise Unsupported(f"slot {NO_SLOT} for a token of a row: this engine writes every one")

    def _model(self, spec: CacheSpec, options: AttentionOptions) -> Any:
        if (spec, options) not in self._models:
            model = _new_model(self._openvino, spec, options)
            self._models[spec, options] = self._core.compile_model(model, "CPU", self._settings(spec.precision))
        return self._models[spec, options]

    def _settings(self, precision: Precision) -> dict[str, Any]:
        """As many threads as torch uses; K/V precision as declared, instead of the engine's default of u8."""
        import torch

        types = self._openvino.Type
        arithmetic = {"bf16": types.bf16, "f16": types.f16}.get(precision.name, types.f32)
        settings = {
            "INFERENCE_PRECISION_HINT": arithmetic,
            "KV_CACHE_PRECISION": getattr(types, precision.name),
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        if precision.quantised:
            settings["KEY_CACHE_QUANT_MODE"] = f"BY_{self._key_groups.upper()}"
        return settings

    def _zeros(self, port: Any, num_blocks: int) -> Any:
        """A zeroed cache for an input of a compiled model, whose first dimension is open."""
        shape = [num_blocks, *(dimension.get_length() for dimension in list(port.get_partial_shape())[1:])]
        tensor = self._openvino.Tensor(port.get_element_type(), shape)
        tensor.data[...] = 0
        return tensor

    def _shared(self, tokens: Tensor) -> Any:
        """The same memory as an `openvino.Tensor`; numpy has no bf16, so the bits go as what it has."""
        import torch

        bits = tokens.contiguous()
        types = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
        if bits.dtype == torch.bfloat16:
            bits = bits.view(torch.float16)
        element = getattr(self._openvino.Type, types[tokens.dtype])
        return self._openvino.Tensor(bits.numpy(), list(tokens.shape), element)


def _metadata(batch: Batch, null_block: int) -> dict[str, npt.NDArray[Any]]:
    """The operation's integers.

    It reads what lies behind a window and weights it with zero, so a hole cannot be given to it: a block whose contents
    are finite stands in for one.
    """
    import numpy as np

    starts, lengths = batch.query_start_loc.numpy(), batch.seq_lens.numpy()
    counts = -(-lengths // BLOCK_SIZE)
    tables = [table[:count].copy() for table, count in zip(batch.block_tables.numpy(), counts, strict=True)]
    for table in tables:
        table[table == HOLE] = null_block
    return {
        "past_lens": (lengths - np.diff(starts)).astype(np.int32),
        "subsequence_begins": starts.astype(np.int32),
        "block_indices": np.concatenate(tables).astype(np.int32),
        "block_indices_begins": np.concatenate([[0], np.cumsum([len(table) for table in tables])]).astype(np.int32),
        "max_context_len": np.array(lengths.max(), np.int32),
    }


def _new_model(openvino: Any, spec: CacheSpec, options: AttentionOptions) -> Any:
    """The operation alone. The plugin finds the cache's shape through runtime information on the node."""
    types = openvino.Type
    compute = getattr(types, {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[spec.precision.compute])
    parameters = _parameters(openvino.opset15, types, spec, compute)
    constants = _constants(openvino.opset15, spec, options)
    inputs = [(parameters if name in parameters else constants)[name].output(0) for name in INPUTS]
    node = openvino.op._PagedAttentionExtension(inputs)  # noqa: SLF001
    information = node.get_rt_info()
    for half, dim in (("k", spec.head_dim), ("v", spec.value_dim)):
        information[f"num_{half}_heads"] = spec.num_kv_heads
        information[f"{half}_head_size"] = dim
    result = openvino.opset15.result(node.output(0))
    return openvino.Model([result], list(parameters.values()), "paged_attention")


def _parameters(ops: Any, types: Any, spec: CacheSpec, compute: Any) -> dict[str, Any]:
    """What changes from call to call, in the operation's order."""
    from openvino import PartialShape

    widths = {
        "query": spec.num_q_heads * spec.head_dim,
        "key": spec.num_kv_heads * spec.head_dim,
        "value": spec.num_kv_heads * spec.value_dim,
    }
    shapes: dict[str, tuple[Any, Any]] = {name: ([-1, width], compute) for name, width in widths.items()}
    for name in ("key_cache", "value_cache"):
        shapes[name] = (PartialShape.dynamic(4), types.dynamic)
    for name in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins"):
        shapes[name] = ([-1], types.i32)
    shapes["max_context_len"] = ([], types.i32)
    made = {name: ops.parameter(shape, kind) for name, (shape, kind) in shapes.items()}
    for name, parameter in made.items():
        parameter.output(0).set_names({name})
    return made


def _constants(ops: Any, spec: CacheSpec, options: AttentionOptions) -> dict[str, Any]:
    """Options, and the empty inputs of what is not used here."""
    import numpy as np

    scale = spec.head_dim**-0.5 if options.scale is None else options.scale
    floats: dict[str, Any] = {"rotation_trig_lut": [], "xattention_threshold": [], "scale": scale}
    floats["alibi_slopes"] = options.alibi_slopes or []
    floats["sinks"] = [] if options.sinks is None else np.reshape(options.sinks, (1, spec.num_q_heads, 1, 1))
    integers: dict[str, Any] = {name: [] for name in INPUTS if name not in floats}
    integers |= {"sliding_window": options.window or 0, "adaptive_rkv_start_size": 0}
    integers |= {"xattention_block_size": 64, "xattention_stride": 8}
    arrays = {name: np.asarray(value, np.float32) for name, value in floats.items()}
    arrays |= {name: np.asarray(value, np.int32) for name, value in integers.items()}
    arrays["qq_bias"] = np.asarray([], np.uint8)
    return {name: ops.constant(value) for name, value in arrays.items()}


__all__ = ["OpenVinoAdapter"]
