"""GGUF metadata in the config spelling of transformers: one table an architecture, nothing dropped.

A key that no table knows stays in the config under its GGUF name, so that ConfigView.finish() refuses it by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from goinfer.compiler.errors import ConfigError, UnsupportedError

Table = Mapping[str, str | None]

DESCRIPTIVE: Final = ("general.", "tokenizer.", "quantize.", "split.")
"""Namespaces that hold no sizes of the model. general.sampling.* and tokenizer.* are read elsewhere."""

_COMMON: Final[Table] = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "vocab_size": "vocab_size",
    "rope.freq_base": "rope_parameters.rope_theta",
    "rope.scaling.type": "rope_parameters.rope_type",
    "rope.scaling.factor": "rope_parameters.factor",
    "rope.scaling.original_context_length": "rope_parameters.original_max_position_embeddings",
    "rope.scaling.attn_factor": "rope_parameters.attention_factor",
    "rope.scaling.yarn_attn_factor": "rope_parameters.attention_factor",
    "rope.scaling.yarn_beta_fast": "rope_parameters.beta_fast",
    "rope.scaling.yarn_beta_slow": "rope_parameters.beta_slow",
    "rope.scaling.finetuned": None,  # whether the model was trained with the scaling; not part of the maths
}
"""GGUF key without its prefix -> config key; a dot nests, None drops, two keys of one name must agree."""

# Llama's converters write the number of rotated dimensions, always the whole head there.
_LLAMA: Final[Table] = {**_COMMON, "rope.dimension_count": "head_dim"}

_GEMMA3: Final[Table] = {
    **_COMMON,
    "rope.freq_base_swa": "rope_local_base_freq",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.dimension_count": "head_dim",
    "rope.dimension_count_swa": "head_dim",
    "attention.key_length_swa": "head_dim",
    "attention.value_length_swa": "head_dim",
}

TABLES: Final[Mapping[str, Table]] = MappingProxyType({
    "llama": _LLAMA,
    "qwen2": {**_COMMON, "rope.dimension_count": "head_dim"},
    "gemma3": _GEMMA3,
})  # fmt: skip

_NESTED_ROPE: Final = frozenset({"gemma3"})
"""Architectures whose config has one rope entry for full and one for sliding layers; the metadata's is the full one."""


def translate(architecture: str, metadata: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """The config of a GGUF file's metadata. `vocabulary` is the number of rows of the embedding."""
    config: dict[str, Any] = {"model_type": architecture}
    table, prefix = TABLES.get(architecture, _COMMON), architecture + "."
    for key, value in metadata.items():
        if key.startswith(DESCRIPTIVE):
            continue
        short = key.removeprefix(prefix) if key.startswith(prefix) else ""
        target = table.get(short, key) if short else key
        if target is not None:
            _store(config, target, _scalar(key, value), key)
    config["vocab_size"] = vocabulary  # the metadata counts tokens, or is silent
    _finish_rope(config, architecture)
    return config


def _store(config: dict[str, Any], target: str, value: Any, key: str) -> None:
    """Set a config key, nested at the first dot for the targets of a table."""
    place, name = config, target
    if target.startswith("rope_parameters."):
        place, name = config.setdefault("rope_parameters", {}), target.removeprefix("rope_parameters.")
    if place.get(name, value) != value:
        raise UnsupportedError(f"metadata key {key!r}: {value!r} contradicts {name} {place[name]!r} of another key")
    place[name] = value


def _scalar(key: str, value: Any) -> Any:
    """Per-layer lists of one repeated value are that value; float32 numbers keep the shortest decimal."""
    if isinstance(value, list) and value and all(item == value[0] for item in value) and not isinstance(value[0], bool):
        value = value[0]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"metadata key {key!r}: {value!r} is not a number a model can have")
        return _shortest(value)
    return value


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-06, where the file has 9.999999974752427e-07."""
    single = np.float32(value)
    return float(str(single)) if float(single) == value else value


def _finish_rope(config: dict[str, Any], architecture: str) -> None:
    """Give the rope entry its type, and move it where the architecture's config has it."""
    rope = config.pop("rope_parameters", None)
    if rope is None:
        return
    if rope.get("rope_type") in (None, "none"):
        rope["rope_type"] = "default"
    if architecture not in _NESTED_ROPE:
        config["rope_parameters"] = rope
        return
    local = config.pop("rope_local_base_freq", None)
    sliding = {"rope_type": "default"} | ({} if local is None else {"rope_theta": local})
    config["rope_parameters"] = {"full_attention": rope, "sliding_attention": sliding}
