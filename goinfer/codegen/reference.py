"""Numpy meaning of each kernel kind but attention (reference_attention.py): pure functions on unpadded arrays.

What must match bit for bit (codes, scales, sums, ids, looked-up rows) is float32 as the kernels round; where a kernel
sums or calls a polynomial the reference is float64 and a test allows a stated error.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.bundle_format.kernel_abi import (
    GROUP,
    Q8_GROUP_BYTES,
    Q8_OFFSET,
    Q8_SCALE,
    Q8_WEIGHTED,
    q8_row_bytes,
    round_up,
)

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def embed(tokens: NDArray[np.int32], weight: F32, factor: float) -> F32:
    """Rows of the unpacked weight, times the factor."""
    return weight[tokens] * np.float32(factor)


def rms(x: NDArray[Any], weight: F32, eps: float) -> F64:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    wide = x.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return wide * (1.0 / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + np.float64(np.float32(eps)))) * weight


def residual(x: F32, delta: F32, post: F32 | None = None, eps: float = 0.0) -> F64:
    """x + delta, or x + rms(delta) * post."""
    change = delta.astype(np.float64) if post is None else rms(delta, post, eps)
    return x.astype(np.float64) + change


def quantise(x: F32) -> tuple[NDArray[np.int8], F32, NDArray[np.int32]]:
    """(codes [R, K padded], scales [R, groups], sums [R, groups]) of f32 rows; bit exact.

    A group with a NaN or an infinity has codes 0 and that value as its scale.
    """
    rows, k = x.shape
    groups = np.zeros((rows, -(-k // GROUP), GROUP), np.float32)
    groups.reshape(rows, -1)[:, :k] = x
    peak = np.abs(groups).max(axis=2)
    with np.errstate(all="ignore"):
        factor = np.float32(127) / peak
        usable = np.isfinite(factor) & np.isfinite(peak)
        scales = np.where(np.isinf(factor), np.float32(0), peak / np.float32(127))
        scaled = groups * factor[..., None]
    codes = np.rint(np.where(usable[..., None], scaled, 0)).astype(np.int8)
    return codes.reshape(rows, -1), scales, codes.sum(axis=2, dtype=np.int32)


def dequantise(codes: NDArray[np.int8], scales: F32, k: int) -> F64:
    """The values that q8 rows stand for."""
    rows = codes.shape[0]
    values = codes.reshape(rows, -1, GROUP).astype(np.float64) * scales[..., None]
    return values.reshape(rows, -1)[:, :k]


def pack_q8(codes: NDArray[np.int8], scales: F32, sums: NDArray[np.int32]) -> NDArray[np.uint8]:
    """q8 rows as the ABI lays them out, [R, q8_row_bytes]; the bytes that nothing reads are 0."""
    n, groups = scales.shape
    rows = np.zeros((n, q8_row_bytes(codes.shape[1])), np.uint8)
    parts = rows[:, : groups * Q8_GROUP_BYTES].reshape(n, groups, Q8_GROUP_BYTES)
    parts[:, :, :GROUP] = codes.reshape(n, groups, GROUP).view(np.uint8)
    with np.errstate(invalid="ignore"):
        fields = ((Q8_SCALE, scales), (Q8_OFFSET, -8 * sums), (Q8_WEIGHTED, scales * sums.astype(np.float32)))
    for at, values in fields:
        parts[:, :, at : at + 4] = np.ascontiguousarray(values).view(np.uint8).reshape(n, groups, 4)
    rows[:, : groups * Q8_GROUP_BYTES] = parts.reshape(n, -1)
    return rows


def unpack_q8(rows: NDArray[np.uint8], k: int) -> tuple[NDArray[np.int8], F32, NDArray[np.int32], F32]:
    """(codes [R, K padded], scales, sums, scales * sums [R, groups]) of q8 rows of k columns."""
    n, groups = len(rows), round_up(k, GROUP) // GROUP
    parts = np.ascontiguousarray(rows[:, : groups * Q8_GROUP_BYTES]).reshape(n, groups, Q8_GROUP_BYTES)

    def field(at: int, dtype: Any) -> NDArray[Any]:
        return np.ascontiguousarray(parts[:, :, at : at + 4]).view(dtype)[..., 0]

    codes = np.ascontiguousarray(parts[:, :, :GROUP]).view(np.int8).reshape(n, -1)
    return codes, field(Q8_SCALE, np.float32), field(Q8_OFFSET, np.int32) // -8, field(Q8_WEIGHTED, np.float32)


def matmul(x: NDArray[Any], weight: F32, bias: F32 | None = None, start: F32 | None = None) -> F64:
    """x @ weight.T, plus the bias, plus what the output held; x as stored (dequantised where it is q8)."""
    out = x.astype(np.float64) @ weight.astype(np.float64).T
    out = out if bias is None else out + bias
    return out if start is None else out + start


_erf = np.frompyfunc(math.erf, 1, 1)


def _gelu_erf(x: F64) -> F64:
    return 0.5 * x * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), np.float64))


def _gelu_tanh(x: F64) -> F64:
    return x / (1.0 + np.exp(-2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[F64], F64]] = {
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "relu": lambda x: np.where(x > 0, x, x * 0),
    "relu2": lambda x: np.where(x > 0, x, x * 0) ** 2,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "identity": lambda x: x,
}


def gate_act(rows: F32, act: str, size: int, gated: bool) -> F64:
    """act(gate) * up of rows [gate | up], or act of the whole row."""
    wide = rows.astype(np.float64)
    with np.errstate(all="ignore"):
        done = ACTIVATIONS[act](wide[:, :size])
        return done * wide[:, size : 2 * size] if gated else done


def argmax(logits: F32) -> NDArray[np.int32]:
    """Index of the largest value of each row, the lowest on ties; -1 where a row holds a NaN."""
    best = np.argmax(logits, axis=1).astype(np.int32)
    return np.where(np.isnan(logits).any(axis=1), np.int32(-1), best)


def topk(logits: F32, k: int) -> tuple[NDArray[np.int32], F32]:
    """(ids, values) of the k largest of each row, descending, lowest id first on ties; -1 and NaN with a NaN."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    values = np.take_along_axis(logits, order, axis=1)
    bad = np.isnan(logits).any(axis=1, keepdims=True)
    return np.where(bad, np.int32(-1), order), np.where(bad, np.float32(np.nan), values)


def softcap(x: F32, cap: float) -> F64:
    """cap * tanh(x / cap)."""
    return cap * np.tanh(x.astype(np.float64) / cap)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), one byte at a time from a table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_TABLE = [_crc_entry(i) for i in range(256)]
