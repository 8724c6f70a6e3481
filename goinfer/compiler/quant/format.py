"""What a weight format is: how a float32 matrix [n, k] becomes packed bytes, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from goinfer.compiler.checkpoints.ggml_grids import Grid
from goinfer.compiler.quant.panels import BLOCK_K, PANEL_ROWS, blocks_of, padded

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

CHUNK: Final = 1 << 15
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

    def repack(self, grid: Grid) -> Bytes | None:
        """Packed bytes with exactly the codes, scales and minima of a grid; None where the format has no such form."""
        ...


class Blocks(ABC):
    """What all formats share: the size of a packed matrix, and no grid to take over."""

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

    def repack(self, grid: Grid) -> Bytes | None:
        """Floats are on no grid of codes."""
        return None

    def _view(self, buffer: Bytes, n: int, k: int) -> Bytes:
        """Packed bytes as [panels, blocks, block_bytes]; a wrong length is a programming error."""
        panels, blocks = blocks_of(n, k)
        return np.frombuffer(buffer, np.uint8).reshape(panels, blocks, self.block_bytes)


def energy(values: F32Array) -> float:
    """The sum of squares, in a fixed order."""
    total, flat = 0.0, values.reshape(-1)
    for start in range(0, len(flat), CHUNK):
        total += float(np.square(flat[start : start + CHUNK], dtype=np.float64).sum())
    return total
