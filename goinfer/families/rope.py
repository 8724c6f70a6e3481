"""Rotary frequencies of every scaling rule goinfer knows, from a config's rope entry to a RopeTable.

All arithmetic is float32 in the order transformers uses, since a position multiplies an error in a frequency.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.compiler.errors import ConfigError, UnsupportedError
from goinfer.compiler.graph_view import RopeTable

F32 = NDArray[np.float32]


def table(entry: Mapping[str, Any], dim: int, *, context: int, divisors: F32 | None = None) -> RopeTable:
    """The table of a normalised rope entry: `rope_theta`, `rope_type` and that type's own keys.

    `dim` is the number of rotated elements of a head, `context` the model's longest sequence, `divisors` a stored
    list of per-frequency divisors (GGUF's rope_freqs). Raises UnsupportedError or ConfigError naming the type or key.
    """
    kind = entry.get("rope_type") or entry.get("type") or "default"
    if kind not in RULES:
        raise UnsupportedError(f"rope type {kind!r} is not supported; known: {', '.join(sorted(RULES))}")
    rule, known = RULES[kind]
    _check(kind, known, entry)
    facts = {"original_max_position_embeddings": context} | {k: v for k, v in entry.items() if v is not None}
    inv_freq, factor = rule(facts, dim)
    if divisors is not None:
        inv_freq = np.divide(inv_freq, divisors, dtype=np.float32)
    return RopeTable(dim, tuple(float(f) for f in inv_freq), factor)


def _check(kind: str, known: Mapping[str, bool], entry: Mapping[str, Any]) -> None:
    """Refuse keys the type does not have, missing ones, and values no rule is defined for."""
    for key, value in entry.items():
        if key in ("rope_type", "type") or value is None:
            continue
        if key not in (*known, "rope_theta"):
            raise UnsupportedError(f"rope type {kind}: unknown key {key}")
        if key == "truncate" and isinstance(value, bool):
            continue
        least = 0.0 if key.startswith("mscale") else math.ulp(0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            raise ConfigError(f"rope type {kind}: {key} {value!r} is not a positive finite number")
    missing = [key for key, needed in known.items() if needed and entry.get(key) is None]
    if missing:
        raise ConfigError(f"rope type {kind}: key {missing[0]} is missing")


def _powers(entry: Mapping[str, Any], dim: int) -> F32:
    """theta ** (2i / dim), the exponent rounded to float32 first and the power rounded once."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.power(np.float64(entry["rope_theta"]), exponents.astype(np.float64)).astype(np.float32)


def _default(entry: Mapping[str, Any], dim: int) -> tuple[F32, float]:
    return np.float32(1.0) / _powers(entry, dim), 1.0


def _linear(entry: Mapping[str, Any], dim: int) -> tuple[F32, float]:
    return _default(entry, dim)[0] / np.float32(entry["factor"]), 1.0


def _llama3(entry: Mapping[str, Any], dim: int) -> tuple[F32, float]:
    """Long waves slow down by `factor`, short ones stay, those between blend linearly in 1 / wavelength."""
    inv_freq = _default(entry, dim)[0]
    factor, low = np.float32(entry["factor"]), entry["low_freq_factor"]
    high, original = entry["high_freq_factor"], entry["original_max_position_embeddings"]
    one = np.float32(1.0)
    # torch divides a number by a tensor as reciprocal times number; doing the same gives the same last bit.
    wavelength = one / inv_freq * np.float32(2 * math.pi)
    scaled = np.where(wavelength > np.float32(original / low), inv_freq / factor, inv_freq)
    smooth = (one / wavelength * np.float32(original) - np.float32(low)) / np.float32(high - low)
    blend = (one - smooth) * scaled / factor + smooth * scaled
    middle = (wavelength >= np.float32(original / high)) & (wavelength <= np.float32(original / low))
    return np.where(middle, blend, scaled).astype(np.float32), 1.0


def _yarn(entry: Mapping[str, Any], dim: int) -> tuple[F32, float]:
    """Frequencies below a ramp of dimensions are interpolated by `factor`, those above it stay."""
    factor, original = float(entry["factor"]), entry["original_max_position_embeddings"]
    powers = _powers(entry, dim)
    turns = (entry.get("beta_fast") or 32, entry.get("beta_slow") or 1)
    low, high = (dim * math.log(original / (t * 2 * math.pi)) / (2 * math.log(entry["rope_theta"])) for t in turns)
    if entry.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    place = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1.0) - np.clip(place, np.float32(0), np.float32(1))
    stretched = np.float32(1.0) / (np.float32(factor) * powers)
    inv_freq = stretched * (np.float32(1.0) - keep) + np.float32(1.0) / powers * keep
    return inv_freq, _yarn_attention_factor(entry, factor)


def _yarn_attention_factor(entry: Mapping[str, Any], factor: float) -> float:
    def growth(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if entry.get("attention_factor") is not None:
        return float(entry["attention_factor"])
    if entry.get("mscale") and entry.get("mscale_all_dim"):
        return growth(entry["mscale"]) / growth(entry["mscale_all_dim"])
    return growth(1.0)


Rule = Callable[[Mapping[str, Any], int], tuple[F32, float]]

# Type -> (rule, its keys: True where the key must be given). A default entry may carry a leftover factor, unused.
RULES: Mapping[str, tuple[Rule, Mapping[str, bool]]] = {
    "default": (_default, {"factor": False}),
    "linear": (_linear, {"factor": True}),
    "llama3": (
        _llama3,
        {
            "factor": True,
            "low_freq_factor": True,
            "high_freq_factor": True,
            "original_max_position_embeddings": False,
        },
    ),
    "yarn": (
        _yarn,
        {
            "factor": True,
            "original_max_position_embeddings": False,
            "attention_factor": False,
            "beta_fast": False,
            "beta_slow": False,
            "mscale": False,
            "mscale_all_dim": False,
            "truncate": False,
        },
    ),
}
