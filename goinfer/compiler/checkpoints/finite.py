"""Refusing weights that are NaN or infinite, by tensor and index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from goinfer.compiler.checkpoints.ggml_types import GgmlType
from goinfer.compiler.errors import NonFiniteError

_EXPONENT = np.uint16(0x7C00)


def check_values(name: str, values: npt.NDArray[np.float32], start: int, shape: tuple[int, ...]) -> None:
    """Raise NonFiniteError for the first non-finite value of a band of rows that begins at row `start`."""
    flat = values.reshape(-1)
    if np.isfinite(flat).all():
        return
    _refuse(name, int(np.flatnonzero(~np.isfinite(flat))[0]), start, shape)


def check_blocks(
    name: str, kind: GgmlType, blocks: npt.NDArray[np.uint8], start: int, shape: tuple[int, ...]
) -> None:
    """The same from the f16 scales of quantised rows: a block has non-finite values exactly if it has such a scale."""
    each = blocks.reshape(-1, kind.block_bytes)
    for at in kind.scales or ():
        halves = np.ascontiguousarray(each[:, at : at + 2]).view(np.uint16)[:, 0] & _EXPONENT
        if (halves == _EXPONENT).any():
            _refuse(name, int(np.flatnonzero(halves == _EXPONENT)[0]) * kind.block_size, start, shape)


def _refuse(name: str, flat: int, start: int, shape: tuple[int, ...]) -> None:
    """`flat` counts values from the start of the band."""
    per_row = int(np.prod(shape[1:], dtype=np.int64))
    index = np.unravel_index(start * per_row + flat, shape)
    where = ", ".join(str(int(i)) for i in index)
    raise NonFiniteError(f"tensor {name!r}: a weight that is not finite, at index [{where}]: the checkpoint is damaged")
