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

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from goinfer.bundle_format.errors import UsageError
from goinfer.compiler.errors import WeightRangeError
from goinfer.compiler.quant import search
from goinfer.compiler.quant.panels import BLOCK_K, PANEL_ROWS, blocks_of, from_groups, padded, to_groups

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

INT8_MAX: Final = 127


class Format(Protocol):
    """A storage format of matrices. Packing needs room for about six copies of the band it is given."""

    name: str
    bits_per_weight: float
    block_bytes: int

    def pack(self, w: F32Array) -> Bytes:
        """The packed bytes (1-D) of a finite float32 matrix [n, k]."""
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


class _Blocks:
    """What all formats share: the size of a packed matrix, and no lossless source."""

    name: str
    bits_per_weight: float
    block_bytes: int

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

    def pack(self, w: F32Array) -> Bytes:
        """The packed bytes of w."""
        return np.ascontiguousarray(to_groups(w).transpose(1, 2, 0, 3)).reshape(-1).view(np.uint8)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """The matrix, bit for bit."""
        groups = self._view(buffer, n, k).view(np.float32).reshape(*blocks_of(n, k), BLOCK_K, PANEL_ROWS)
        return from_groups(groups.transpose(2, 0, 1, 3), n, k)


class BF16(_Blocks):
    """The upper half of a float32, rounded to nearest even."""

    name = "bf16"
    bits_per_weight = 16.0
    block_bytes = 1024

    def pack(self, w: F32Array) -> Bytes:
        """The packed bytes of w."""
        bits = np.ascontiguousarray(w, np.float32).view(np.uint32)
        upper = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        if np.any((upper & 0x7F80) == 0x7F80):
            raise WeightRangeError("quantise: a weight is beyond the largest bf16: use the f32 recipe")
        return np.ascontiguousarray(to_groups(upper).transpose(1, 2, 0, 3)).reshape(-1).view(np.uint8)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """The rounded matrix."""
        halves = self._view(buffer, n, k).view(np.uint16).reshape(*blocks_of(n, k), BLOCK_K, PANEL_ROWS)
        groups = (halves.astype(np.uint32) << 16).view(np.float32)
        return from_groups(groups.transpose(2, 0, 1, 3), n, k)


class Int8(_Blocks):
    """Symmetric 8-bit codes in [-127, 127], one f16 scale for 32 k of a row."""

    name = "int8"
    bits_per_weight = 8.5
    block_bytes = 544

    def pack(self, w: F32Array) -> Bytes:
        """The packed bytes of w."""
        codes, scales = search.int8_codes(to_groups(w))
        return self._assemble(codes, scales)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """code * scale."""
        view = self._view(buffer, n, k)
        codes = view[..., :512].reshape(*view.shape[:2], 8, PANEL_ROWS, 4).view(np.int8)
        groups = codes.transpose(2, 4, 0, 1, 3).astype(np.float32).reshape(BLOCK_K, *view.shape[:2], PANEL_ROWS)
        return from_groups(groups * _scales(view), n, k)

    def repack(self, source_type: str, blocks: Bytes) -> Bytes | None:
        """Q8_0 has the same groups; a block that uses the code -128 has no exact form here."""
        if source_type != "Q8_0":
            return None
        grouped = blocks.reshape(blocks.shape[0], -1, 34)
        codes = grouped[..., 2:].view(np.int8)
        if codes.size and codes.min() < -INT8_MAX:
            return None
        scales = np.ascontiguousarray(grouped[..., :2]).view(np.float16)[..., 0]
        return self._assemble(to_groups(codes.reshape(len(blocks), -1)), _scale_groups(scales))

    def _assemble(self, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> Bytes:
        """Codes [32, panels, blocks, 16] and scales [panels, blocks, 16] to bytes."""
        panels, blocks = codes.shape[1:3]
        out = np.empty((panels, blocks, self.block_bytes), np.uint8)
        loads = out[..., :512].view(np.uint32).reshape(panels, blocks, 8, PANEL_ROWS)
        parts: Bytes = codes.view(np.uint8).reshape(8, 4, panels, blocks, PANEL_ROWS)
        loads[...] = _four_bytes(parts).transpose(1, 2, 0, 3)
        out[..., 512:] = scales.view(np.uint8)
        return out.reshape(-1)


class Int4(_Blocks):
    """Symmetric 4-bit codes in [-8, 7], one f16 scale for 32 k of a row, chosen for the least squared error."""

    name = "int4"
    bits_per_weight = 4.5
    block_bytes = 288

    def pack(self, w: F32Array) -> Bytes:
        """The packed bytes of w."""
        codes, scales = search.int4_codes(to_groups(w))
        return self._assemble(codes, scales)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """(code - 8) * scale."""
        view = self._view(buffer, n, k)
        bytes_ = view[..., :256].reshape(*view.shape[:2], 4, PANEL_ROWS, 4)
        pair = np.stack([bytes_ & 15, bytes_ >> 4], axis=3)
        codes = pair.transpose(2, 3, 5, 0, 1, 4).reshape(BLOCK_K, *view.shape[:2], PANEL_ROWS)
        return from_groups((codes.astype(np.float32) - np.float32(8)) * _scales(view), n, k)

    def repack(self, source_type: str, blocks: Bytes) -> Bytes | None:
        """Q4_0 has the same groups, codes and zero point."""
        if source_type != "Q4_0":
            return None
        grouped = blocks.reshape(blocks.shape[0], -1, 18)
        nibbles = np.concatenate([grouped[..., 2:] & 15, grouped[..., 2:] >> 4], axis=-1)
        scales = np.ascontiguousarray(grouped[..., :2]).view(np.float16)[..., 0]
        return self._assemble(to_groups(nibbles.reshape(len(blocks), -1), fill=8), _scale_groups(scales))

    def _assemble(self, codes: Bytes, scales: npt.NDArray[np.float16]) -> Bytes:
        """Codes 0..15 [32, panels, blocks, 16] and scales [panels, blocks, 16] to bytes."""
        panels, blocks = codes.shape[1:3]
        out = np.empty((panels, blocks, self.block_bytes), np.uint8)
        halves = codes.reshape(4, 2, 4, panels, blocks, PANEL_ROWS)
        loads = out[..., :256].view(np.uint32).reshape(panels, blocks, 4, PANEL_ROWS)
        loads[...] = _four_bytes(halves[:, 0] | (halves[:, 1] << 4)).transpose(1, 2, 0, 3)
        out[..., 256:] = scales.view(np.uint8)
        return out.reshape(-1)


def _four_bytes(parts: Bytes) -> npt.NDArray[np.uint32]:
    """[loads, 4, ...] bytes to [loads, ...] little-endian words: the 4 k of a row lie together in a load."""
    words = parts[:, 0].astype(np.uint32)
    for i in range(1, 4):
        words |= parts[:, i].astype(np.uint32) << np.uint32(8 * i)
    return words


def _scales(view: Bytes) -> F32Array:
    """The 16 f16 scales at the end of each block, as float32 [panels, blocks, 16]."""
    return np.ascontiguousarray(view[..., -32:]).view(np.float16).astype(np.float32)


def _scale_groups(scales: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """Scales [n, groups] to [panels, groups, 16]; padded rows get scale 0."""
    n, groups = scales.shape
    panels = -(-n // PANEL_ROWS)
    out = np.zeros((panels * PANEL_ROWS, groups), np.float16)
    out[:n] = scales
    return np.ascontiguousarray(out.reshape(panels, PANEL_ROWS, groups).transpose(0, 2, 1))


FORMATS: Final[dict[str, Format]] = {f.name: f for f in (F32(), BF16(), Int8(), Int4())}


def format_named(name: str) -> Format:
    """The format of that name, UsageError otherwise."""
    if name not in FORMATS:
        raise UsageError(f"format {name!r}: unknown: use one of {', '.join(FORMATS)}")
    return FORMATS[name]


def quantise_activations(x: F32Array) -> tuple[npt.NDArray[np.int8], F32Array, npt.NDArray[np.int32]]:
    """Rows [R, K] to int8 codes [R, K'], scales [R, K'/32] and sums of codes [R, K'/32], K' = K padded to 32.

    Kernels must give the same bits: per group of 32, scale = absmax / 127 and codes = rint(x * (127 / absmax)),
    half to even, all float32. A group whose 127 / absmax is not finite (all zeros, or absmax under 3.8e-37) has
    scale 0 and codes 0.
    """
    rows, k = x.shape
    groups = np.zeros((rows, -(-k // BLOCK_K) * BLOCK_K), np.float32)
    groups[:, :k] = x
    groups = groups.reshape(rows, -1, BLOCK_K)
    largest = np.abs(groups).max(axis=2)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(INT8_MAX) / largest
    usable = np.isfinite(inverse)
    codes = np.rint(groups * np.where(usable, inverse, 0)[..., None]).astype(np.int8)
    scales = np.where(usable, largest / np.float32(INT8_MAX), np.float32(0))
    return codes.reshape(rows, -1), scales, codes.sum(axis=2, dtype=np.int32)
