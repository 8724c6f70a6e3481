"""The grid that a GGML type puts its weights on: codes, and a scale and a minimum for each group of 32.

A weight that lies on such a grid already must not be rounded to another one: a format of ours that has the same
groups takes over the codes as they are (compiler/quant/integer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from goinfer.compiler.checkpoints.dequantise import Bytes, f16_column, five_bits, k_scales, nibbles
from goinfer.compiler.checkpoints.ggml_types import BY_NAME

F16Array = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Grid:
    """Rows of groups of 32: weight = (code - zero) * scale + minimum.

    codes are uint8 [n, k] in 0 .. 2^bits - 1; scales and minima are f16 [n, k / 32], minima None where all are zero.
    `exact` is False where f16 had to round a scale or a minimum.
    """

    bits: int
    zero: int
    codes: Bytes
    scales: F16Array
    minima: F16Array | None = None
    exact: bool = True


def grid_of(type_name: str, blocks: Bytes) -> Grid | None:
    """The grid of rows of whole blocks [n, bytes], n at least 1; None for a type that has none with groups of 32."""
    read = _READERS.get(type_name)
    return read(blocks) if read else None


def has_minimum(type_name: str) -> bool:
    """True for the 4-bit types whose groups have a minimum of their own, which a symmetric format cannot hold."""
    return type_name in ("Q4_1", "Q4_K")


def is_four_bit(type_name: str) -> bool:
    """True for the GGML types of 4-bit codes (up to 5 bits a weight with their scales)."""
    return type_name in ("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS")


def is_finer_than_four_bit(type_name: str) -> bool:
    """True for every type of more than 5 bits a weight; False for one that is not GGML's."""
    kind = BY_NAME.get(type_name)
    return kind is not None and 8 * kind.block_bytes > 5 * kind.block_size


def _q4_0(blocks: Bytes) -> Grid:
    flat = blocks.reshape(-1, 18)
    return Grid(4, 8, _rows(nibbles(flat[:, 2:]), blocks), _f16(flat, 0, blocks))


def _q4_1(blocks: Bytes) -> Grid:
    flat = blocks.reshape(-1, 20)
    return Grid(4, 0, _rows(nibbles(flat[:, 4:]), blocks), _f16(flat, 0, blocks), _f16(flat, 2, blocks))


def _q5_0(blocks: Bytes) -> Grid:
    flat = blocks.reshape(-1, 22)
    return Grid(5, 16, _rows(five_bits(flat[:, 2:6], flat[:, 6:]), blocks), _f16(flat, 0, blocks))


def _q8_0(blocks: Bytes) -> Grid:
    flat = blocks.reshape(-1, 34)
    return Grid(8, 128, _rows(flat[:, 2:] ^ np.uint8(128), blocks), _f16(flat, 0, blocks))


def _q4_k(blocks: Bytes) -> Grid | None:
    """None where a product of the two levels of scales is beyond f16."""
    flat = blocks.reshape(-1, 144)
    scales, minima = k_scales(flat)
    with np.errstate(over="ignore"):
        halves = [x.astype(np.float16).reshape(len(blocks), -1) for x in (scales, -minima)]
    if not all(np.isfinite(x).all() for x in halves):
        return None
    codes = nibbles(np.ascontiguousarray(flat[:, 16:]).reshape(-1, 32))
    return Grid(4, 0, _rows(codes, blocks), halves[0], halves[1], exact=False)


def _rows(codes: npt.NDArray[np.uint64] | Bytes, blocks: Bytes) -> Bytes:
    return codes.view(np.uint8).reshape(len(blocks), -1)


def _f16(flat: Bytes, at: int, blocks: Bytes) -> F16Array:
    return f16_column(flat, at).reshape(len(blocks), -1)


_READERS: Final[Mapping[str, Callable[[Bytes], Grid | None]]] = MappingProxyType({
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q8_0": _q8_0, "Q4_K": _q4_k,
})
