"""The weight formats of a bundle: how a float32 matrix [n, k] becomes packed bytes, and back.

One layout serves every target: panels of 16 output rows, each a run of blocks of 32 k. `n` is padded to 16 and
`k` to 32 with zeros, so a band of rows whose count is a multiple of 16 packs to one contiguous byte range.

    f32    32 k x 16 rows of f32                                                               2048 bytes
    bf16   the same of bf16, rounded to nearest even                                           1024 bytes
    int8   8 loads of 64 bytes: load j, byte 4r+i is the code of row r at k 8j.. (4j+i); 16 f16 scales      544 bytes
    int4   4 loads of 64 bytes: load j, byte 4r+i holds row r at k 8j+i (low nibble) and 8j+4+i (high nibble),
           each code + 8; then 16 f16 scales                                                    288 bytes

A group (one row of one block) of zeros has scale 0 and decodes to exact zeros.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from goinfer.bundle_format.errors import UsageError
from goinfer.compiler.errors import WeightRangeError
from goinfer.compiler.quant import native, search
from goinfer.compiler.quant.panels import (
    BLOCK_K,
    PANEL_ROWS,
    QUADS,
    blocks_of,
    from_quads,
    pad,
    padded,
    tiles,
    to_quads,
)

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

INT8_MAX: Final = 127

_CHUNK: Final = 1 << 15
"""Values worked on at once, so that temporaries stay in a core's cache."""


@dataclass(frozen=True)
class Packed:
    """Packed bytes, the sum of squares of the weights, and that of the error."""

    data: Bytes
    energy: float
    error: float


class Format(Protocol):
    """A storage format of matrices. Packing needs room for about two copies of the band it is given."""

    name: str
    bits_per_weight: float
    block_bytes: int

    def pack(self, w: F32Array) -> Bytes:
        """The packed bytes (1-D) of a finite float32 matrix [n, k]."""
        ...

    def measure(self, w: F32Array) -> Packed:
        """The same bytes, with the energy of w and of unpack(pack(w)) - w; the same numbers on every machine."""
        ...

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """The float32 matrix [n, k] that packed bytes stand for, without the padding."""
        ...

    def nbytes(self, n: int, k: int) -> int:
        """Bytes that a packed [n, k] takes."""
        ...

    def repack(self, source_type: str, blocks: Bytes) -> Bytes | None:
        """Packed bytes with exactly the codes and scales of a source's own blocks, None where it has no such form."""
        ...


class _Blocks(ABC):
    """What all formats share: the size of a packed matrix, and no lossless source."""

    name: str
    bits_per_weight: float
    block_bytes: int

    def pack(self, w: F32Array) -> Bytes:
        """The packed bytes of w."""
        return self.measure(w).data

    @abstractmethod
    def measure(self, w: F32Array) -> Packed:
        """The packed bytes and the two energies."""

    def nbytes(self, n: int, k: int) -> int:
        """Bytes that a packed [n, k] takes."""
        rows, columns = padded(n, k)
        return rows * columns // (PANEL_ROWS * BLOCK_K) * self.block_bytes

    def repack(self, source_type: str, blocks: Bytes) -> Bytes | None:
        """No source stores this format's blocks."""
        return None

    def _view(self, buffer: Bytes, n: int, k: int) -> Bytes:
        """Packed bytes as [panels, blocks, block_bytes]; a wrong length is a programming error."""
        panels, blocks = blocks_of(n, k)
        return np.frombuffer(buffer, np.uint8).reshape(panels, blocks, self.block_bytes)


class F32(_Blocks):
    """Plain float32."""

    name = "f32"
    bits_per_weight = 32.0
    block_bytes = 2048

    def measure(self, w: F32Array) -> Packed:
        """The packed bytes of w; nothing is lost."""
        return Packed(_pack_plain(w), _energy(w), 0.0)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """The matrix, bit for bit."""
        return _unpack_plain(self._view(buffer, n, k).view(np.float32), n, k)


class BF16(_Blocks):
    """The upper half of a float32, rounded to nearest even."""

    name = "bf16"
    bits_per_weight = 16.0
    block_bytes = 1024

    def measure(self, w: F32Array) -> Packed:
        """The packed bytes of w, with the energy of w and of what rounding changed."""
        upper = np.empty(w.shape, np.uint16)
        change = 0.0
        step = max(1, _CHUNK // max(1, w.shape[1]))
        for start in range(0, len(w), step):
            band = np.ascontiguousarray(w[start : start + step])
            upper[start : start + step] = rounded = _round_to_bf16(band)
            change += _energy(band - (rounded.astype(np.uint32) << 16).view(np.float32))
        if ((upper & 0x7F80) == 0x7F80).any():
            raise WeightRangeError("quantise: a weight is beyond the largest bf16: use the f32 recipe")
        return Packed(_pack_plain(upper), _energy(w), change)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """The rounded matrix."""
        bits = self._view(buffer, n, k).view(np.uint16).astype(np.uint32) << 16
        return _unpack_plain(bits.view(np.float32), n, k)


class _Integer(_Blocks):
    """Codes in loads of 64 bytes, then one f16 scale a row."""

    def measure(self, w: F32Array) -> Packed:
        """The packed bytes of w, with the energy of w and of what packing changed."""
        whole = pad(w)
        out = np.empty((*blocks_of(*whole.shape), self.block_bytes), np.uint8)
        stats = search.new_stats()
        if not native.pack(self.name, whole, out, stats):
            self.pack_slowly(whole, out, stats)
        search.refuse_overflow(stats)
        return Packed(out.reshape(-1), math.fsum(stats[0]), math.fsum(stats[1]))

    def pack_slowly(self, whole: F32Array, out: Bytes, stats: search.Stats) -> None:
        """A padded matrix into out [panels, blocks, block_bytes] with NumPy alone, in tiles that fit a core's cache."""
        for p, b in tiles(*out.shape[:2]):
            rows = slice(p.start * PANEL_ROWS, p.stop * PANEL_ROWS)
            tile = np.ascontiguousarray(whole[rows, b.start * BLOCK_K : b.stop * BLOCK_K])
            self._store(out[p, b], *self._quantise(to_quads(tile), stats))

    def repack(self, source_type: str, blocks: Bytes) -> Bytes | None:
        """The source's codes and f16 scales, unchanged, where the groups and codes of the two types agree."""
        split = self._split(source_type, blocks)
        if split is None:
            return None
        codes, scales = split
        whole = pad(codes, fill=self._zero_code)
        panels, columns = blocks_of(*whole.shape)
        out = np.empty((panels, columns, self.block_bytes), np.uint8)
        row_scales = np.zeros((panels * PANEL_ROWS, columns), np.float16)
        row_scales[: len(scales)] = scales
        self._store(out, to_quads(whole), row_scales.reshape(panels, PANEL_ROWS, columns).transpose(0, 2, 1))
        return out.reshape(-1)

    _zero_code: int

    @abstractmethod
    def _quantise(self, quads: F32Array, stats: search.Stats) -> tuple[Bytes, npt.NDArray[np.float16]]:
        """Code bytes in the shape of quads, and scales [panels, blocks, 16]."""

    @abstractmethod
    def _store(self, out: Bytes, codes: Bytes, scales: npt.NDArray[np.float16]) -> None:
        """Codes [8, panels, blocks, 16, 4] and scales [panels, blocks, 16] into out [panels, blocks, block_bytes]."""

    @abstractmethod
    def _split(self, source_type: str, blocks: Bytes) -> tuple[Bytes, npt.NDArray[np.float16]] | None:
        """A source's blocks [n, bytes] as code bytes [n, k] and scales [n, k/32]; None where it has no exact form."""


class Int8(_Integer):
    """Symmetric 8-bit codes in [-127, 127], one f16 scale for 32 k of a row."""

    name = "int8"
    bits_per_weight = 8.5
    block_bytes = 544
    _zero_code = 0

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """code * scale."""
        view = self._view(buffer, n, k)
        codes = view[..., :512].reshape(*view.shape[:2], QUADS, PANEL_ROWS, 4).view(np.int8).astype(np.float32)
        return from_quads((codes * _scales(view)).transpose(2, 0, 1, 3, 4), n, k)

    def _quantise(self, quads: F32Array, stats: search.Stats) -> tuple[Bytes, npt.NDArray[np.float16]]:
        return search.int8_codes(quads, stats)

    def _store(self, out: Bytes, codes: Bytes, scales: npt.NDArray[np.float16]) -> None:
        panels, blocks = out.shape[:2]
        out[..., :512].reshape(panels, blocks, QUADS, PANEL_ROWS, 4)[...] = codes.transpose(1, 2, 0, 3, 4)
        out[..., 512:] = np.ascontiguousarray(scales).view(np.uint8)

    def _split(self, source_type: str, blocks: Bytes) -> tuple[Bytes, npt.NDArray[np.float16]] | None:
        """Q8_0, unless a block uses the code -128."""
        if source_type != "Q8_0":
            return None
        grouped = blocks.reshape(len(blocks), -1, 34)
        codes = np.ascontiguousarray(grouped[..., 2:]).reshape(len(blocks), -1)
        if (codes == 0x80).any():
            return None
        return codes, np.ascontiguousarray(grouped[..., :2]).view(np.float16)[..., 0]


class Int4(_Integer):
    """Symmetric 4-bit codes in [-8, 7], one f16 scale for 32 k of a row, chosen for the least squared error."""

    name = "int4"
    bits_per_weight = 4.5
    block_bytes = 288
    _zero_code = 8

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """(code - 8) * scale."""
        view = self._view(buffer, n, k)
        loads = view[..., :256].reshape(*view.shape[:2], 4, 1, PANEL_ROWS, 4)
        codes = np.concatenate([loads & 15, loads >> 4], axis=3).reshape(*view.shape[:2], QUADS, PANEL_ROWS, 4)
        values = (codes.astype(np.float32) - np.float32(8)) * _scales(view)
        return from_quads(values.transpose(2, 0, 1, 3, 4), n, k)

    def _quantise(self, quads: F32Array, stats: search.Stats) -> tuple[Bytes, npt.NDArray[np.float16]]:
        return search.int4_codes(quads, stats)

    def _store(self, out: Bytes, codes: Bytes, scales: npt.NDArray[np.float16]) -> None:
        panels, blocks = out.shape[:2]
        pairs = codes[0::2] | (codes[1::2] << 4)
        out[..., :256].reshape(panels, blocks, 4, PANEL_ROWS, 4)[...] = pairs.transpose(1, 2, 0, 3, 4)
        out[..., 256:] = np.ascontiguousarray(scales).view(np.uint8)

    def _split(self, source_type: str, blocks: Bytes) -> tuple[Bytes, npt.NDArray[np.float16]] | None:
        """Q4_0 has the same groups, codes and zero point."""
        if source_type != "Q4_0":
            return None
        grouped = blocks.reshape(len(blocks), -1, 18)
        nibbles = np.concatenate([grouped[..., 2:] & 15, grouped[..., 2:] >> 4], axis=-1)
        return nibbles.reshape(len(blocks), -1), np.ascontiguousarray(grouped[..., :2]).view(np.float16)[..., 0]


def _round_to_bf16(band: F32Array) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 values, rounded to nearest even; the largest values become infinite."""
    bits = band.view(np.uint32)
    odd = bits >> np.uint32(16)
    odd &= np.uint32(1)
    odd += np.uint32(0x7FFF)
    odd += bits
    odd >>= np.uint32(16)
    return odd.astype(np.uint16)


def _energy(values: F32Array) -> float:
    """The sum of squares, in a fixed order."""
    total, flat = 0.0, values.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        total += float(np.square(flat[start : start + _CHUNK], dtype=np.float64).sum())
    return total


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


def _scales(view: Bytes) -> F32Array:
    """The 16 f16 scales at the end of each block, as float32 [panels, blocks, 1, 16, 1]."""
    return np.ascontiguousarray(view[..., -32:]).view(np.float16).astype(np.float32)[:, :, None, :, None]


FORMATS: Final[dict[str, Format]] = {f.name: f for f in (F32(), BF16(), Int8(), Int4())}


def format_named(name: str) -> Format:
    """The format of that name, UsageError otherwise."""
    if name not in FORMATS:
        raise UsageError(f"format {name!r}: unknown: use one of {', '.join(FORMATS)}")
    return FORMATS[name]


def quantise_activations(x: F32Array) -> tuple[npt.NDArray[np.int8], F32Array, npt.NDArray[np.int32]]:
    """Rows [R, K] to int8 codes [R, K'], scales [R, K'/32] and sums of codes [R, K'/32], K' = K padded to 32.

    Kernels must give the same bits: per group of 32, scale = absmax / 127 and codes = rint(x * (127 / absmax)),
    half to even, all float32. A group whose 127 / absmax overflows (all zeros, or absmax under 3.8e-37) has scale 0
    and codes 0. A group with a NaN or an infinity has codes 0 and that as its scale, so that no product hides it.
    """
    rows, k = x.shape
    groups = np.zeros((rows, -(-k // BLOCK_K) * BLOCK_K), np.float32)
    groups[:, :k] = x
    groups = groups.reshape(rows, -1, BLOCK_K)
    largest = np.abs(groups).max(axis=2)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.float32(INT8_MAX) / largest
        scaled = groups * inverse[..., None]
    usable = np.isfinite(inverse) & np.isfinite(largest)
    codes = np.rint(np.where(usable[..., None], scaled, 0)).astype(np.int8)
    scales = np.where(np.isinf(inverse), np.float32(0), largest / np.float32(INT8_MAX))
    return codes.reshape(rows, -1), scales, codes.sum(axis=2, dtype=np.int32)
