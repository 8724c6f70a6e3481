"""The weight formats of a bundle, by name, and the format of activations.

One layout serves every target: panels of 16 output rows, each a run of blocks of 32 k. `n` is padded to 16 and
`k` to 32 with zeros, so a band of rows whose count is a multiple of 16 packs to one contiguous byte range.

    f32      32 k x 16 rows of f32                                                             2048 bytes
    bf16     the same of bf16, rounded to nearest even                                         1024 bytes
    int8     8 loads of 64 bytes: load j, byte 4r+i is the code of row r at k 8j.. (4j+i); 16 f16 scales    544 bytes
    int4     4 loads of 64 bytes: load j, byte 4r+i holds row r at k 8j+i (low nibble) and 8j+4+i (high nibble),
             each code + 8; then 16 f16 scales                                                  288 bytes
    int4min  4 loads as in int4, of codes 0..15; 16 f16 scales, 16 f16 minima                   320 bytes

A group (one row of one block) of zeros has scale 0 and decodes to exact zeros.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from goinfer.bundle_format.errors import UsageError
from goinfer.compiler.quant.format import F32Array, Format
from goinfer.compiler.quant.integer import INT8_MAX, Int4, Int4Min, Int8
from goinfer.compiler.quant.panels import BLOCK_K
from goinfer.compiler.quant.plain import BF16, F32

FORMATS: Final[dict[str, Format]] = {f.name: f for f in (F32(), BF16(), Int8(), Int4(), Int4Min())}


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
