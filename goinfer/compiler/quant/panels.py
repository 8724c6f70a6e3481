"""Rows and columns to panels: the order in which every format stores its weights.

The integer formats work on *quads*: arrays [8, panels, blocks, 16, 4] in which element (j, p, b, r, i) is row 16p + r,
column 32b + 4j + i. Moving four columns at a time makes the transposition cheap, the codes of load j of a block end
up in the order the kernels read, and a sum over a group is a few long vector additions in one fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

PANEL_ROWS: Final = 16
BLOCK_K: Final = 32
QUADS: Final = 8

TILE_GROUPS: Final = 2048
"""Groups worked on at once: 64 Ki weights, so that the working arrays stay in a core's cache."""

T = TypeVar("T", bound=np.generic)

_FOUR_OF: Final = {1: np.uint32, 2: np.uint64, 4: np.complex128}
"""A type as wide as four elements: NumPy moves one such element in the time of one of the four."""


def padded(n: int, k: int) -> tuple[int, int]:
    """n rounded up to whole panels, k to whole blocks."""
    return -(-n // PANEL_ROWS) * PANEL_ROWS, -(-k // BLOCK_K) * BLOCK_K


def blocks_of(n: int, k: int) -> tuple[int, int]:
    """Panels of a matrix [n, k], and blocks of a panel."""
    return -(-n // PANEL_ROWS), -(-k // BLOCK_K)


def pad(w: npt.NDArray[T], fill: Any = 0) -> npt.NDArray[T]:
    """w as a contiguous array of whole panels and blocks; w itself where it is one already."""
    n, k = w.shape
    rows, columns = padded(n, k)
    if (rows, columns) == (n, k):
        return np.ascontiguousarray(w)
    whole = np.full((rows, columns), fill, w.dtype)
    whole[:n, :k] = w
    return whole


def to_quads(w: npt.NDArray[T]) -> npt.NDArray[T]:
    """A padded contiguous matrix as quads [8, panels, blocks, 16, 4], contiguous."""
    panels, blocks = blocks_of(*w.shape)
    wide: npt.NDArray[Any] = w.view(_FOUR_OF[w.itemsize]).reshape(panels, PANEL_ROWS, blocks, QUADS)
    quads = np.ascontiguousarray(wide.transpose(3, 0, 2, 1))
    return quads.view(w.dtype).reshape(QUADS, panels, blocks, PANEL_ROWS, 4)


def from_quads(quads: npt.NDArray[T], n: int, k: int) -> npt.NDArray[T]:
    """The inverse of to_quads: a contiguous [n, k] without the padding."""
    return np.ascontiguousarray(quads.transpose(1, 3, 2, 0, 4).reshape(*padded(n, k))[:n, :k])


def tiles(panels: int, blocks: int) -> Iterator[tuple[slice, slice]]:
    """(panels, blocks) ranges that cover the matrix, each of at most TILE_GROUPS groups."""
    block_step = min(blocks, TILE_GROUPS // PANEL_ROWS)
    panel_step = max(1, TILE_GROUPS // (PANEL_ROWS * block_step))
    for panel in range(0, panels, panel_step):
        for block in range(0, blocks, block_step):
            yield slice(panel, min(panel + panel_step, panels)), slice(block, min(block + block_step, blocks))
