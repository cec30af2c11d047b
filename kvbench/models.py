"""KV-cache shapes of public models, each with its source, out of models.json; what they take is computed from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from kvbench.errors import UsageError
from kvbench.names import closest
from kvbench.reference.memory import (
    FORMATS,
    ElementFormat,
    LayerGroup,
    attention,
    bytes_per_token,
    ceil_div,
    latent_attention,
    linear_attention,
)

Kind = Literal["attention", "sliding_window", "latent", "linear_hybrid"]

FORMAT_ALIASES: Mapping[str, str] = {
    "f32": "float32",
    "fp32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "f8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "u8": "uint8",
    "i8": "int8",
    "i4": "int4",
}

CHECKPOINT_SUFFIXES = ("-instruct", "-chat", "-base", "-it", "-hf")
"""What checkpoint names add to a model's name without changing its shape."""


@dataclass(frozen=True)
class Model:
    """A model's KV-cache shape and, where they are known, its weights.

    shape: whole numbers by the names of models.json (`layers`, `kv_heads`, `head_dim`, `window`, `kv_lora_rank`, ...).
    max_context: tokens. source, parameters_source: where the figures are from.
    parameters: None if not known for sure. weight_dtype: how the published checkpoint stores most of them.
    checkpoint_bytes: size of a published checkpoint that mixes formats.
    """

    name: str
    kind: Kind
    shape: Mapping[str, int]
    max_context: int
    source: str
    aliases: tuple[str, ...] = ()
    parameters: int | None = None
    parameters_source: str | None = None
    weight_dtype: str = "bfloat16"
    checkpoint_bytes: int | None = None
    note: str = ""
    names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(_folded(name) for name in (self.name, *self.aliases)))

    @property
    def q_heads(self) -> int:
        """Query heads of a layer."""
        return self.shape["q_heads"]

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer as an attention kernel sees them: MLA's latent is one head that all queries share."""
        return 1 if self.kind == "latent" else self.shape["kv_heads"]

    @property
    def head_dim(self) -> int:
        """Elements of a key as an attention kernel sees them: MLA's latent with its rotary part."""
        return self.shape["kv_lora_rank"] + self.shape["rope_dim"] if self.kind == "latent" else self.shape["head_dim"]

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the weights as published, or None if the number of parameters is not known for sure."""
        if self.checkpoint_bytes is not None or self.parameters is None:
            return self.checkpoint_bytes
        return ceil_div(self.parameters * element_format(self.weight_dtype).bits, 8)

    def groups(self, element: ElementFormat, tensor_parallel: int = 1) -> tuple[LayerGroup, ...]:
        """The groups of layers that grow alike, as one tensor-parallel rank holds them."""
        shape = self.shape
        if self.kind == "latent":
            index_dim = shape.get("index_dim", 0)
            return (
                latent_attention(
                    shape["layers"], shape["kv_lora_rank"], shape["rope_dim"], element, index_dim=index_dim
                ),
            )
        heads, head_dim = shape["kv_heads"], shape["head_dim"]
        if self.kind == "attention":
            return (attention(shape["layers"], heads, head_dim, element, tensor_parallel=tensor_parallel),)
        full = attention(shape["full_layers"], heads, head_dim, element, tensor_parallel=tensor_parallel)
        if self.kind == "sliding_window":
            window = shape["window"]
            return full, attention(shape["window_layers"], heads, head_dim, element, window, tensor_parallel)
        return full, linear_attention(
            layers=shape["state_layers"],
            key_heads=shape["key_heads"],
            value_heads=shape["value_heads"],
            key_dim=shape["key_dim"],
            value_dim=shape["value_dim"],
            conv_width=shape["conv_width"],
            element=element,
            tensor_parallel=tensor_parallel,
        )


def load_models() -> tuple[Model, ...]:
    """All models of models.json, in its order."""
    data = json.loads(resources.files("kvbench").joinpath("models.json").read_text(encoding="utf-8"))
    return tuple(_model(entry, data["sources"]) for entry in data["models"])


def list_models() -> Iterator[dict[str, Any]]:
    """One row a model: name, kind, longest context, bytes per token in bf16 once windows are full, source."""
    element = element_format("bf16")
    for model in load_models():
        yield {
            "name": model.name,
            "kind": model.kind,
            "context": model.max_context,
            "bytes_per_token": bytes_per_token(model.groups(element)),
            "source": model.source,
        }


def find_model(name: str) -> Model:
    """The model called `name`: case, an organisation in front and "-instruct" behind do not matter."""
    models = load_models()
    wanted = _folded(name)
    for model in models:
        if wanted in model.names:
            return model
    known = [known for model in models for known in (model.name, *model.aliases)]
    raise UsageError(f"unknown model {name!r}{closest(wanted, known)}; `kvbench list models` names all {len(models)}")


def element_format(name: str) -> ElementFormat:
    """The element format called `name` ("bf16", "fp8", ...)."""
    wanted = FORMAT_ALIASES.get(name.casefold(), name.casefold())
    for element in FORMATS:
        if element.name == wanted:
            return element
    known = [element.name for element in FORMATS]
    raise UsageError(f"unknown data type {name!r}{closest(name, [*known, *FORMAT_ALIASES])}; use {', '.join(known)}")


def _folded(name: str) -> str:
    folded = name.strip().casefold().rpartition("/")[2].replace("_", "-").replace(" ", "-")
    for suffix in CHECKPOINT_SUFFIXES:
        folded = folded.removesuffix(suffix)
    return folded


def _model(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Model:
    about = {
        "name", "aliases", "kind", "max_context", "source", "note",
        "parameters", "parameters_source", "weight_dtype", "checkpoint_bytes",
    }  # fmt: skip
    known = entry.get("parameters_source")
    return Model(
        name=entry["name"],
        kind=entry["kind"],
        shape={key: value for key, value in entry.items() if key not in about},
        max_context=entry["max_context"],
        source=sources[entry["source"]],
        aliases=tuple(entry.get("aliases", ())),
        parameters=entry.get("parameters"),
        parameters_source=None if known is None else sources[known],
        weight_dtype=entry.get("weight_dtype", "bfloat16"),
        checkpoint_bytes=entry.get("checkpoint_bytes"),
        note=entry.get("note", ""),
    )
