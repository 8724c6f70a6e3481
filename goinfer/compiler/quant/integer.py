"""Formats of integer codes: int8, int4, and int4 with a minimum.

They quantise floats (search.py says how, native.py does it fast), and take over the codes of a source that lies on a
grid which they can hold, so that no weight is rounded twice.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Final

import numpy as np
import numpy.typing as npt

from goinfer.compiler.checkpoints.ggml_grids import Grid
from goinfer.compiler.errors import WeightRangeError
from goinfer.compiler.quant import native, search
from goinfer.compiler.quant.format import Blocks, Bytes, F32Array, Packed
from goinfer.compiler.quant.panels import (
    BLOCK_K,
    PANEL_ROWS,
    QUADS,
    blocks_of,
    from_quads,
    pad,
    tiles,
    to_quads,
)

INT8_MAX: Final = 127
F16Array = npt.NDArray[np.float16]

_FIELD: Final = 2 * PANEL_ROWS
"""Bytes of one f16 a row."""


class _Integer(Blocks):
    """Codes in loads of 64 bytes, then one or two f16 a row."""

    code_bytes: int
    _zero_code: int

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
            codes, scales = self._quantise(to_quads(tile), stats)
            self._store(out[p, b], codes, [scales])

    def repack(self, grid: Grid) -> Bytes | None:
        """The source's codes, scales and minima unchanged, where this format can hold them."""
        taken = self._take(grid)
        if taken is None:
            return None
        codes, fields = taken
        whole = pad(codes, fill=self._zero_code)
        out = np.empty((*blocks_of(*whole.shape), self.block_bytes), np.uint8)
        self._store(out, to_quads(whole), [_by_panel(field, *out.shape[:2]) for field in fields])
        return out.reshape(-1)

    def _store(self, out: Bytes, codes: Bytes, fields: list[F16Array]) -> None:
        """Codes [8, panels, blocks, 16, 4] and fields [panels, blocks, 16] into out [panels, blocks, block_bytes]."""
        panels, blocks = out.shape[:2]
        loads = self._loads(codes)
        out[..., : self.code_bytes].reshape(panels, blocks, -1, PANEL_ROWS, 4)[...] = loads.transpose(1, 2, 0, 3, 4)
        for i, field in enumerate(fields):
            at = self.code_bytes + _FIELD * i
            out[..., at : at + _FIELD] = np.ascontiguousarray(field).view(np.uint8)

    def _field(self, view: Bytes, i: int) -> F32Array:
        """Field i of each block as float32 [panels, blocks, 1, 16, 1]."""
        at = self.code_bytes + _FIELD * i
        halves = np.ascontiguousarray(view[..., at : at + _FIELD]).view(np.float16)
        return halves.astype(np.float32)[:, :, None, :, None]

    @abstractmethod
    def _quantise(self, quads: F32Array, stats: search.Stats) -> tuple[Bytes, F16Array]:
        """Code bytes in the shape of quads, and scales [panels, blocks, 16]."""

    @abstractmethod
    def _loads(self, codes: Bytes) -> Bytes:
        """Code bytes [8, panels, blocks, 16, 4] as the loads [loads, panels, blocks, 16, 4] of a block."""

    @abstractmethod
    def _take(self, grid: Grid) -> tuple[Bytes, list[F16Array]] | None:
        """A grid as code bytes [n, k] and fields [n, k/32]; None where it has no exact form."""


class Int8(_Integer):
    """Symmetric 8-bit codes in [-127, 127], one f16 scale for 32 k of a row."""

    name = "int8"
    bits_per_weight = 8.5
    block_bytes = 544
    code_bytes = 512
    _zero_code = 0

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """code * scale."""
        view = self._view(buffer, n, k)
        codes = view[..., :512].reshape(*view.shape[:2], QUADS, PANEL_ROWS, 4).view(np.int8).astype(np.float32)
        return from_quads((codes * self._field(view, 0)).transpose(2, 0, 1, 3, 4), n, k)

    def _quantise(self, quads: F32Array, stats: search.Stats) -> tuple[Bytes, F16Array]:
        return search.int8_codes(quads, stats)

    def _loads(self, codes: Bytes) -> Bytes:
        return codes

    def _take(self, grid: Grid) -> tuple[Bytes, list[F16Array]] | None:
        """Every grid without a minimum, unless it uses the code -128."""
        if grid.minima is not None:
            return None
        codes = grid.codes - np.uint8(grid.zero)
        return None if (codes == 0x80).any() else (codes, [grid.scales])


class Int4(_Integer):
    """Symmetric 4-bit codes in [-8, 7], one f16 scale for 32 k of a row, chosen for the least squared error."""

    name = "int4"
    bits_per_weight = 4.5
    block_bytes = 288
    code_bytes = 256
    _zero_code = 8

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """(code - 8) * scale."""
        view = self._view(buffer, n, k)
        values = (_nibbles(view) - np.float32(8)) * self._field(view, 0)
        return from_quads(values.transpose(2, 0, 1, 3, 4), n, k)

    def _quantise(self, quads: F32Array, stats: search.Stats) -> tuple[Bytes, F16Array]:
        return search.int4_codes(quads, stats)

    def _loads(self, codes: Bytes) -> Bytes:
        return codes[0::2] | (codes[1::2] << np.uint8(4))

    def _take(self, grid: Grid) -> tuple[Bytes, list[F16Array]] | None:
        """4-bit codes around 8."""
        if grid.bits != 4 or grid.zero != 8 or grid.minima is not None:
            return None
        return grid.codes, [grid.scales]


class Int4Min(Int4):
    """4-bit codes in [0, 15] with an f16 scale and an f16 minimum for 32 k of a row: what a 4-bit source may hold.

    Weights that lie on no such grid are stored as int4 would, with the minimum -8 * scale.
    """

    name = "int4min"
    bits_per_weight = 5.0
    block_bytes = 320
    _zero_code = 0

    def measure(self, w: F32Array) -> Packed:
        """The bytes, energy and error of int4, with the minimum that makes them the same values."""
        packed = _INT4.measure(w)
        narrow = packed.data.reshape(*blocks_of(*w.shape), _INT4.block_bytes)
        out = np.empty((*narrow.shape[:2], self.block_bytes), np.uint8)
        out[..., : _INT4.block_bytes] = narrow
        scales = np.ascontiguousarray(narrow[..., self.code_bytes :]).view(np.float16)
        out[..., _INT4.block_bytes :] = _minus_eight(scales).view(np.uint8)
        return Packed(out.reshape(-1), packed.energy, packed.error)

    def unpack(self, buffer: Bytes, n: int, k: int) -> F32Array:
        """code * scale + minimum, each operation rounded."""
        view = self._view(buffer, n, k)
        values = _nibbles(view) * self._field(view, 0) + self._field(view, 1)
        return from_quads(values.transpose(2, 0, 1, 3, 4), n, k)

    def _take(self, grid: Grid) -> tuple[Bytes, list[F16Array]] | None:
        """4-bit codes with a minimum, or around 8."""
        if grid.bits != 4:
            return None
        minima = _minus_eight(grid.scales) if grid.minima is None else grid.minima
        return grid.codes, [grid.scales, minima]


_INT4: Final = Int4()


def _nibbles(view: Bytes) -> F32Array:
    """The codes 0..15 of blocks [panels, blocks, bytes] as [panels, blocks, 8, 16, 4]."""
    loads = view[..., :256].reshape(*view.shape[:2], 4, 1, PANEL_ROWS, 4)
    codes = np.concatenate([loads & 15, loads >> 4], axis=3)
    return codes.reshape(*view.shape[:2], QUADS, PANEL_ROWS, 4).astype(np.float32)


def _minus_eight(scales: F16Array) -> F16Array:
    """-8 * scale, exact, without negative zeros. Raises WeightRangeError where f16 cannot hold it."""
    with np.errstate(over="ignore"):
        minima = scales * np.float16(-8) + np.float16(0)
    if not np.isfinite(minima).all():
        raise WeightRangeError("quantise: a weight group needs a minimum over f16's 65504: use the f32 or bf16 recipe")
    return minima


def _by_panel(field: F16Array, panels: int, blocks: int) -> F16Array:
    """One number a row and group [n, blocks], padded with zeros, as [panels, blocks, 16]."""
    whole = np.zeros((panels * PANEL_ROWS, blocks), np.float16)
    whole[: len(field)] = field
    return whole.reshape(panels, PANEL_ROWS, blocks).transpose(0, 2, 1)
