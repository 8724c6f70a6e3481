"""config.json in one spelling: transformers 4 and 5 write the same model differently.

The result is transformers 5's form: RoPE in `rope_parameters` (per layer type where the family has two bases), the
text model's own config where a multimodal one wraps it, `dtype` for `torch_dtype`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from goinfer.compiler.errors import ConfigError, UnsupportedError

LAYERED_ROPE: Final[Mapping[str, str]] = MappingProxyType({
    "gemma3_text": "rope_local_base_freq", "gemma3n_text": "rope_local_base_freq",
})  # fmt: skip
"""Families with one rope entry for full and one for sliding layers, and the old key of the sliding one's base."""

LAYER_KINDS: Final = ("full_attention", "sliding_attention")

_OLD_ROPE_TYPES: Final[Mapping[str, str]] = MappingProxyType({"su": "longrope", "none": "default"})

_INHERITED: Final = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config")
"""Keys of a multimodal config that hold for its text model unless that says otherwise."""


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's config in transformers 5's form. Raises ConfigError where two spellings disagree."""
    config = _text_model(config)
    if config.get("quantization_config") is not None:
        raise UnsupportedError(f"config: quantization_config ({_method(config)}): quantised folders are not supported")
    out = {key: value for key, value in config.items() if key not in ("torch_dtype", "quantization_config")}
    if out.get("dtype") is None and "torch_dtype" in config:
        out["dtype"] = config["torch_dtype"]
    return _with_one_rope(out)


def _text_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nested text_config of a multimodal model, with what it inherits; the config itself otherwise."""
    text = config.get("text_config")
    if text is None:
        return config
    if not isinstance(text, dict):
        raise ConfigError("config: text_config is not an object")
    return {key: config[key] for key in _INHERITED if key in config} | text


def _method(config: Mapping[str, Any]) -> str:
    inner = config["quantization_config"]
    return str(inner.get("quant_method", "no method given")) if isinstance(inner, dict) else repr(inner)


def _with_one_rope(config: dict[str, Any]) -> dict[str, Any]:
    """rope_theta, rope_scaling, rope_local_base_freq and rope_parameters as rope_parameters alone."""
    local_key = LAYERED_ROPE.get(str(config.get("model_type")))
    theta, scaling = config.pop("rope_theta", None), _entry("rope_scaling", config.pop("rope_scaling", None))
    given = _object("rope_parameters", config.pop("rope_parameters", None))
    local = config.pop(local_key, None) if local_key else theta
    layered = local_key is not None or any(kind in given for kind in LAYER_KINDS)
    if not layered:
        merged = _merge("rope_parameters", _entry("rope_parameters", given), scaling, theta)
        return config | ({"rope_parameters": merged} if merged else {})
    if given and not any(kind in given for kind in LAYER_KINDS):  # one entry for both, as a flat scaling is
        given = {"full_attention": given}
    unknown = sorted(set(given) - set(LAYER_KINDS))
    if unknown:
        raise UnsupportedError(f"config: rope_parameters.{unknown[0]}: not a kind of layer that is known")
    entries = {kind: _entry(f"rope_parameters.{kind}", given.get(kind)) for kind in LAYER_KINDS}
    full = _merge("rope_parameters.full_attention", entries["full_attention"], scaling, theta)
    sliding = _merge("rope_parameters.sliding_attention", entries["sliding_attention"], {}, local)
    layers = {kind: entry for kind, entry in zip(LAYER_KINDS, (full, sliding), strict=True) if entry}
    return config | ({"rope_parameters": layers} if layers else {})


def _object(key: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"config: {key}: {value!r} is not an object")
    return value


def _entry(key: str, value: Any) -> dict[str, Any]:
    """One rope entry with `rope_type` for either spelling of it, nulls left out."""
    entry = {k: v for k, v in _object(key, value).items() if v is not None}
    kind = entry.pop("type", None)
    kind = entry.get("rope_type", kind)
    if kind is None:
        scaled = sorted(set(entry) - {"rope_theta", "partial_rotary_factor"})
        if scaled:
            raise ConfigError(f"config: {key}: has {scaled[0]} but no rope_type")
    if entry or kind is not None:
        entry["rope_type"] = _OLD_ROPE_TYPES.get(str(kind), kind) if kind is not None else "default"
    return entry


def _merge(key: str, entry: dict[str, Any], scaling: dict[str, Any], theta: Any) -> dict[str, Any]:
    """The entry with the old spellings' values; the two may both be there if they agree."""
    out = dict(entry)
    if out.get("rope_type") == "default" and scaling and set(out) <= {"rope_type", "rope_theta"}:
        del out["rope_type"]  # a filled-in block without content does not contradict a scaling
    old = dict(scaling) | ({} if theta is None else {"rope_theta": theta})
    for name, value in old.items():
        if out.get(name, value) != value:
            raise ConfigError(f"config: {key}.{name} is {out[name]!r}, but the older spelling says {value!r}")
        out[name] = value
    if out:
        out.setdefault("rope_type", "default")
    return out
