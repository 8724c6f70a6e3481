"""Formats that keep floating point: f32, and bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from goinfer.compiler.errors import WeightRangeError
from goinfer.compiler.quant.format import CHUNK, Blocks, Bytes, F32Array, Packed, energy
from goinfer.compiler.quant.panels import BLOCK_K, PANEL_ROWS, blocks_of, pad, padded


class F32(Blocks):
    """Plain float32."""

    name = "f32"
    bits_per_weight = 32.0
    block_bytes = 2048

    def measure(self, w: F32Array) -> Packed:
        """The packed bytes of w; nothing is lost."""
        return Packed(_pack_plain(w), energy(w), 0.0)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """The matrix, bit for bit."""
        return _unpack_plain(self._view(buffer, n, k).view(np.float32), n, k)


class BF16(Blocks):
    """The upper half of a float32, rounded to nearest even."""

    name = "bf16"
    bits_per_weight = 16.0
    block_bytes = 1024

    def measure(self, w: F32Array) -> Packed:
        """The packed bytes of w, with the energy of w and of what rounding changed."""
        upper = np.empty(w.shape, np.uint16)
        change = 0.0
        step = max(1, CHUNK // max(1, w.shape[1]))
        for start in range(0, len(w), step):
            band = np.ascontiguousarray(w[start : start + step])
            upper[start : start + step] = rounded = _round_to_bf16(band)
            change += energy(band - (rounded.astype(np.uint32) << 16).view(np.float32))
        if ((upper & 0x7F80) == 0x7F80).any():
            raise WeightRangeError("quantise: a weight is beyond the largest bf16: use the f32 recipe")
        return Packed(_pack_plain(upper), energy(w), change)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """The rounded matrix."""
        bits = self._view(buffer, n, k).view(np.uint16).astype(np.uint32) << 16
        return _unpack_plain(bits.view(np.float32), n, k)


def _round_to_bf16(band: F32Array) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 values, rounded to nearest even; the largest values become infinite."""
    bits = band.view(np.uint32)
    odd = bits >> np.uint32(16)
    odd &= np.uint32(1)
    odd += np.uint32(0x7FFF)
    odd += bits
    odd >>= np.uint32(16)
    return odd.astype(np.uint16)


def _pack_plain(w: npt.NDArray[Any]) -> Bytes:
    """Values to blocks of 32 k x 16 rows."""
    whole = pad(w)
    panels, blocks = blocks_of(*whole.shape)
    grouped = whole.reshape(panels, PANEL_ROWS, blocks, BLOCK_K).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(grouped).reshape(-1).view(np.uint8)


def _unpack_plain(values: F32Array, n: int, k: int) -> F32Array:
    """The inverse of _pack_plain."""
    grouped = values.reshape(*blocks_of(n, k), BLOCK_K, PANEL_ROWS).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(grouped.reshape(*padded(n, k))[:n, :k])
