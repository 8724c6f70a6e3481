"""Rows and columns to panels: the order in which every format stores its weights.

Work happens on arrays [32, panels, blocks, 16]: the k of a group on the first axis, so that a reduction over a
group is 32 long vector additions in a fixed order, the same on every machine.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

PANEL_ROWS: Final = 16
BLOCK_K: Final = 32

T = TypeVar("T", bound=np.generic)


def padded(n: int, k: int) -> tuple[int, int]:
    """n rounded up to whole panels, k to whole blocks."""
    return -(-n // PANEL_ROWS) * PANEL_ROWS, -(-k // BLOCK_K) * BLOCK_K


def blocks_of(n: int, k: int) -> tuple[int, int]:
    """Panels of a matrix [n, k], and blocks of a panel."""
    return -(-n // PANEL_ROWS), -(-k // BLOCK_K)


def to_groups(w: npt.NDArray[T], fill: Any = 0) -> npt.NDArray[T]:
    """[n, k] to a contiguous [32, panels, blocks, 16], padding with `fill`."""
    n, k = w.shape
    rows, columns = padded(n, k)
    if (rows, columns) != (n, k):
        whole = np.full((rows, columns), fill, w.dtype)
        whole[:n, :k] = w
        w = whole
    panels, blocks = blocks_of(n, k)
    return np.ascontiguousarray(w.reshape(panels, PANEL_ROWS, blocks, BLOCK_K).transpose(3, 0, 2, 1))


def from_groups(groups: npt.NDArray[T], n: int, k: int) -> npt.NDArray[T]:
    """The inverse of to_groups: a contiguous [n, k] without the padding."""
    rows, columns = padded(n, k)
    return np.ascontiguousarray(groups.transpose(1, 3, 2, 0).reshape(rows, columns)[:n, :k])
