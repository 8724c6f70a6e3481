"""Reading the config fields that families share: sizes, activation names, tied heads, caps, rope entries."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.tensor_map import SourceMap
from goinfer.compiler.errors import ConfigError, MissingTensorError, UnsupportedError
from goinfer.compiler.graph_view import RopeTable
from goinfer.families import rope

EMBEDDING, HEAD, ROPE_DIVISORS = "token_embd.weight", "output.weight", "rope_freqs.weight"

# Config names of activations -> op names. "gelu" is the exact one; a family that means tanh by it says so.
ACTIVATION_NAMES: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}

# Keys that cannot change the numbers of inference: training, generation, bookkeeping.
IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "architectures",
        "model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "use_cache",
        "initializer_range",
        "attention_dropout",
        "pretraining_tp",  # splits a matmul; the same sum
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "chunk_size_feed_forward",
        "id2label",
        "label2id",
        "is_encoder_decoder",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "is_llama_config",
        "transformers.js_config",
        "cache_implementation",
    }
)


def _given(view: ConfigView, key: str, default: Any) -> Any:
    value = view.require(key) if default is None else view.get(key)
    return default if value is None else value


def size(view: ConfigView, key: str, default: int | None = None) -> int:
    """A positive whole number; required unless a default is given."""
    value = _given(view, key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigError(f"config key {key}: {value!r} is not a positive whole number")
    return value


def number(view: ConfigView, key: str, default: float | None = None) -> float:
    """A positive finite number; required unless a default is given."""
    value = _given(view, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"config key {key}: {value!r} is not a positive finite number")
    return float(value)


def root(value: int) -> float:
    """The square root as float32 has it."""
    return float(np.float32(value**0.5))


def flag(view: ConfigView, key: str, default: bool = False) -> bool:
    """A boolean; null means the default."""
    value = view.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"config key {key}: {value!r} is not true or false")
    return default if value is None else value


def bias(view: ConfigView, sources: SourceMap, key: str, tensor: str) -> bool:
    """A bias flag. GGUF files have none, so there the presence of the tensor decides."""
    present = sources.has(f"{tensor}.bias") and sources.store.kind == "gguf"
    return flag(view, key, present)


def soft_cap(view: ConfigView, key: str) -> float:
    """A soft cap; 0 or absent is off, a negative or non-finite one an error."""
    value = view.get(key)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"config key {key}: {value!r} is not a soft cap (0 or none is off)")
    return float(value)


def activation(view: ConfigView, key: str, default: str) -> str:
    """The op name of an activation."""
    name = view.get(key) or default
    if name not in ACTIVATION_NAMES:
        raise UnsupportedError(f"config key {key}: activation {name!r} is not supported")
    return ACTIVATION_NAMES[name]


def vocabulary(view: ConfigView, sources: SourceMap) -> int:
    """Rows of the embedding. GGUF files count tokens, not rows, so there the tensor decides."""
    rows = sources.shape(EMBEDDING)[0]
    declared = size(view, "vocab_size", rows)
    return rows if sources.store.kind == "gguf" else declared


def tied_head(view: ConfigView, sources: SourceMap, default: bool | None = None) -> bool:
    """True if the head is the embedding. `default` is what the family's config class assumes without the flag.

    A checkpoint without a head tensor is tied, unless its config says that it is not.
    """
    declared = view.get("tie_word_embeddings")
    present = sources.has(HEAD)
    if declared is False and not present and sources.store.kind != "gguf":
        raise MissingTensorError("missing tensor: output head: the config says that it is not the embedding")
    if declared is None:
        declared = default if sources.store.kind != "gguf" else None
    return not present or bool(declared)


def rope_entry(view: ConfigView, default_theta: float = 10000.0) -> dict[str, Any]:
    """The one rope entry of a model, whichever spelling the config has."""
    theta, scaling, entry = view.get("rope_theta"), view.get("rope_scaling"), view.get("rope_parameters")
    merged = {"rope_theta": default_theta if theta is None else theta} | dict(scaling or {}) | dict(entry or {})
    return {key: value for key, value in merged.items() if value is not None}


def rope_table(view: ConfigView, sources: SourceMap, dim: int, context: int) -> RopeTable:
    """The table of a model with one rope entry; a GGUF file may carry its scaling as a tensor of divisors."""
    return rope.table(rope_entry(view), dim, context=context, divisors=sources.constant(ROPE_DIVISORS))


def layer_windows(kinds: Sequence[str], n_layers: int, window: int) -> list[int]:
    """The window of each layer from its kind: sliding_attention has it, full_attention sees everything (0)."""
    if len(kinds) != n_layers:
        raise ConfigError(f"config key layer_types: {len(kinds)} entries for {n_layers} layers")
    known = {"sliding_attention": window, "full_attention": 0}
    for kind in kinds:
        if kind not in known:
            raise UnsupportedError(f"config key layer_types: {kind!r} is not supported here")
    return [known[kind] for kind in kinds]
