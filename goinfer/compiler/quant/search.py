"""Codes and scales of the integer formats.

Inputs are groups [32, panels, blocks, 16] (panels.to_groups): a group's 32 values lie along the first axis. All
arithmetic is element-wise float32 and sums run in a fixed order, so the same weights give the same codes everywhere.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from goinfer.compiler.errors import WeightRangeError

F32Array = npt.NDArray[np.float32]
F16Array = npt.NDArray[np.float16]

MAX_F16: Final = 65504.0

INT4_REACH: Final = (8.0, 7.2, 8.8)
"""Codes that the largest value of a group is tried at before the least-squares refit.

Relative error on Gaussian weights: 8 alone 0.0839, these three 0.0815, forty-five tries 0.0808; the usual
absmax / -8 without a refit has 0.0859.
"""


def int8_codes(groups: F32Array) -> tuple[npt.NDArray[np.int8], F16Array]:
    """Codes in [-127, 127] and f16 scales [panels, blocks, 16] of groups."""
    largest = np.maximum(groups.max(axis=0), -groups.min(axis=0))
    scales = _to_f16(largest / np.float32(127))
    # A scale that f16 rounded down by more than half a step of the last code would clip the largest value.
    clipped = scales.astype(np.float32) * np.float32(127.5) < largest
    scales = np.where(clipped, np.nextafter(scales, np.float16(np.inf)), scales)
    codes = groups * _inverse(scales)
    np.rint(codes, out=codes)
    np.clip(codes, np.float32(-127), np.float32(127), out=codes)
    return codes.astype(np.int8), scales


def int4_codes(groups: F32Array) -> tuple[npt.NDArray[np.uint8], F16Array]:
    """Codes 0..15 (the value + 8) and f16 scales [panels, blocks, 16] of least squared error over a few tries."""
    flat = groups.reshape(groups.shape[0], -1)
    scales = _to_f16(_int4_scales(flat))
    codes = flat * _inverse(scales)
    np.rint(codes, out=codes)
    np.clip(codes, np.float32(-8), np.float32(7), out=codes)
    codes += np.float32(8)
    return codes.astype(np.uint8).reshape(groups.shape), scales.reshape(groups.shape[1:])


def _int4_scales(flat: F32Array) -> F32Array:
    """The best refitted scale of each group [32, groups]; 0 for a group of zeros."""
    high, low = flat.max(axis=0), flat.min(axis=0)
    extreme = np.where(high > -low, high, low)
    codes, product = np.empty_like(flat), np.empty_like(flat)
    best, scales = np.zeros_like(extreme), np.zeros_like(extreme)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for reach in INT4_REACH:
            inverse = np.float32(-reach) / extreme
            inverse[~np.isfinite(inverse)] = 0
            np.multiply(flat, inverse, out=codes)
            np.rint(codes, out=codes)
            np.clip(codes, np.float32(-8), np.float32(7), out=codes)
            along = np.add.reduce(np.multiply(codes, flat, out=product), axis=0)
            norm = np.add.reduce(np.multiply(codes, codes, out=product), axis=0)
            # Refitting the scale to along/norm lowers the squared error by along^2/norm.
            fitted = along / norm
            gain = along * fitted
            better = gain > best
            best = np.where(better, gain, best)
            scales = np.where(better, fitted, scales)
    return scales


def _to_f16(scales: F32Array) -> F16Array:
    """Scales rounded to f16; a scale that f16 cannot hold is an error, for the weight would be lost."""
    if scales.size and not np.abs(scales).max() <= MAX_F16:
        raise WeightRangeError(
            f"quantise: a weight group needs scale {np.abs(scales).max():.3g}, over f16's {MAX_F16:g}: "
            "use the f32 or bf16 recipe"
        )
    return scales.astype(np.float16) + np.float16(0)  # no negative zero: a zero group is all zero bytes


def _inverse(scales: F16Array) -> F32Array:
    """1 / scale in float32, 0 where the scale is 0."""
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / scales.astype(np.float32)
    inverse[scales == 0] = 0
    return inverse
