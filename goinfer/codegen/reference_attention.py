"""Numpy meaning of the qkv_post and attention kernels, pages included; what their tests compare with.

Plain loops over rows and heads in float64 where sums are formed, float32 where the kernels round.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.bundle_format.kernel_abi import PAGE, kv_head_bytes, round_up

F32 = NDArray[np.float32]
_STORED = {"f32": np.float32, "f16": np.float16, "int8": np.int8}


@dataclass(frozen=True)
class CacheShape:
    """What one layer keeps: heads, their size, the precision, and where the layer begins inside a page."""

    n_kv_heads: int
    head_dim: int
    kv: str
    layer_offset: int = 0

    @property
    def layer_bytes(self) -> int:
        """Bytes of the layer in a page."""
        return self.n_kv_heads * sum(kv_head_bytes(self.head_dim, self.kv))

    def parts(self, page: NDArray[np.uint8], head: int) -> tuple[Any, Any, Any, Any]:
        """Views of one head of a page: keys [4, head_dim, 16], values [64, padded], and their scales (or None)."""
        dtype = np.dtype(_STORED[self.kv])
        key_bytes, value_bytes = kv_head_bytes(self.head_dim, self.kv)
        start = self.layer_offset + head * (key_bytes + value_bytes)
        key_part = page[start : start + key_bytes]
        value_part = page[start + key_bytes : start + key_bytes + value_bytes]
        padded = round_up(self.head_dim, 16)
        keys = key_part[: PAGE * self.head_dim * dtype.itemsize].view(dtype).reshape(4, self.head_dim, 16)
        values = value_part[: PAGE * padded * dtype.itemsize].view(dtype).reshape(PAGE, padded)
        if self.kv != "int8":
            return keys, values, None, None
        return keys, values, key_part[-4 * PAGE :].view(np.float32), value_part[-4 * PAGE :].view(np.float32)


def quantise_head(x: F32) -> tuple[NDArray[np.int8], np.float32]:
    """int8 codes and scale of one key or value."""
    peak = np.abs(x).max()
    if peak < np.float32(1e-30):
        return np.zeros(x.shape, np.int8), np.float32(0)
    with np.errstate(invalid="ignore"):
        codes = np.rint(x * (np.float32(127) / peak))
    return np.where(np.isnan(codes), 0, codes).astype(np.int8), np.float32(peak / np.float32(127))


def write_position(shape: CacheShape, page: NDArray[np.uint8], place: int, keys: F32, values: F32) -> None:
    """Store keys and values [n_kv_heads, head_dim] of one position at `place` (0..63) of a page."""
    for head in range(shape.n_kv_heads):
        k, v, k_scale, v_scale = shape.parts(page, head)
        key, value = keys[head], values[head]
        if shape.kv == "int8":
            key, k_scale[place] = quantise_head(key)
            value, v_scale[place] = quantise_head(value)
        with np.errstate(over="ignore"):
            k[place // 16, :, place % 16] = key
            v[place, : shape.head_dim] = value
        v[place, shape.head_dim :] = 0


def read_position(shape: CacheShape, page: NDArray[np.uint8], place: int) -> tuple[F32, F32]:
    """Keys and values [n_kv_heads, head_dim] of one position as the kernels read them."""
    keys = np.empty((shape.n_kv_heads, shape.head_dim), np.float32)
    values = np.empty_like(keys)
    for head in range(shape.n_kv_heads):
        k, v, k_scale, v_scale = shape.parts(page, head)
        keys[head] = k[place // 16, :, place % 16]
        values[head] = v[place, : shape.head_dim]
        if shape.kv == "int8":
            with np.errstate(invalid="ignore"):
                keys[head] *= k_scale[place]
                values[head] *= v_scale[place]
    return keys, values


@dataclass(frozen=True)
class QkvPost:
    """Static and numeric attributes of the qkv_post kernel; `rope` is the table [positions, 2, head_dim/2]."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    q_scale: float = 1.0
    eps: float = 1e-6
    rope: F32 | None = None
    q_norm: F32 | None = None
    k_norm: F32 | None = None

    def heads(self, qkv: F32, position: int) -> tuple[F32, F32, F32]:
        """Finished queries, keys and values of one row, each [heads, head_dim]."""
        n, m = self.n_heads, self.n_kv_heads
        x = qkv[: (n + 2 * m) * self.head_dim].reshape(-1, self.head_dim)
        q = self._rotated(self._normed(x[:n], self.q_norm), position) * np.float32(self.q_scale)
        k = self._rotated(self._normed(x[n : n + m], self.k_norm), position)
        return q, k, x[n + m :]

    def _normed(self, x: F32, weight: F32 | None) -> F32:
        if weight is None:
            return x
        mean = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
        return (x / np.sqrt(mean + self.eps) * weight).astype(np.float32)

    def _rotated(self, x: F32, position: int) -> F32:
        if self.rope is None:
            return x
        half = self.head_dim // 2
        cos, sin = self.rope[position]
        a, b = x[:, :half], x[:, half:]
        with np.errstate(invalid="ignore"):
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)


@dataclass(frozen=True)
class Attention:
    """Numeric attributes of the attention kernel."""

    window: int = 0
    softcap: float = 0.0
    sinks: F32 | None = None

    def row(self, q: F32, keys: F32, values: F32, position: int) -> F32:
        """Output [n_heads, head_dim] of a query [n_heads, head_dim] over keys [positions, n_kv_heads, head_dim]."""
        oldest = max(0, position - self.window + 1) if self.window else 0
        k = keys[oldest : position + 1].astype(np.float64)
        v = values[oldest : position + 1].astype(np.float64)
        ratio = q.shape[0] // keys.shape[1]
        out = np.empty(q.shape, np.float32)
        for head in range(q.shape[0]):
            scores = k[:, head // ratio] @ q[head].astype(np.float64)
            if self.softcap:
                scores = self.softcap * np.tanh(scores / self.softcap)
            sink = -np.inf if self.sinks is None else float(self.sinks[head])
            weights = np.exp(scores - max(scores.max(), sink))
            total = weights.sum() + np.exp(sink - max(scores.max(), sink))
            out[head] = weights @ v[:, head // ratio] / total
        return out
