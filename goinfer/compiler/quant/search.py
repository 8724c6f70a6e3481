"""Codes and scales of the integer formats.

Inputs are quads [8, panels, blocks, 16, 4] (panels.to_quads): a group's 32 values lie along the first and last axes.
All arithmetic is element-wise float32 and sums run in a fixed order, so the same weights give the same codes on
every machine.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from goinfer.compiler.errors import WeightRangeError
from goinfer.compiler.quant.panels import PANEL_ROWS

F32Array = npt.NDArray[np.float32]
F16Array = npt.NDArray[np.float16]
CodeArray = npt.NDArray[np.uint8]

MAX_F16: Final = 65504.0

INT4_REACH: Final = (8.0, 7.2, 8.8)
"""Codes that the largest value of a group is tried at before the least-squares refit.

Relative error on Gaussian weights: 8 alone 0.0839, these three 0.0815, forty-five tries 0.0808; the usual
absmax / -8 without a refit has 0.0859.
"""


Stats = npt.NDArray[np.float64]
"""[3, 16]: for each row of a panel the energy of its weights, the energy of the error, and the largest scale."""


def new_stats() -> Stats:
    """Statistics of nothing yet."""
    return np.zeros((3, PANEL_ROWS), np.float64)


def int8_codes(quads: F32Array, stats: Stats) -> tuple[CodeArray, F16Array]:
    """Codes in [-127, 127] as two's complement bytes, and f16 scales [panels, blocks, 16]. Adds to stats."""
    flat = _flat(quads)
    high, low = _extremes(flat)
    largest: F32Array = np.maximum(high, -low)
    exact = largest / np.float32(127)
    scales = _to_f16(exact)
    # A scale that f16 rounded down by more than half a step of the last code would clip the largest value.
    clipped = scales.astype(np.float32) * np.float32(127.5) < largest
    scales[clipped] = np.nextafter(scales[clipped], np.float16(np.inf))
    codes = _rounded(flat, _inverse(scales), -127, 127, np.empty_like(flat))
    _count(stats, flat, codes, scales, exact)
    return codes.astype(np.int8).view(np.uint8).reshape(quads.shape), scales.reshape(quads.shape[1:4])


def int4_codes(quads: F32Array, stats: Stats) -> tuple[CodeArray, F16Array]:
    """Codes 0..15 (the value + 8) and f16 scales [panels, blocks, 16] of least squared error over a few tries."""
    flat = _flat(quads)
    work = np.empty_like(flat)
    exact = _int4_scales(flat, work)
    scales = _to_f16(exact)
    codes = _rounded(flat, _inverse(scales), -8, 7, work)
    _count(stats, flat, codes, scales, exact)
    codes += np.float32(8)
    return codes.astype(np.uint8).reshape(quads.shape), scales.reshape(quads.shape[1:4])


def refuse_overflow(stats: Stats) -> None:
    """Raise WeightRangeError if a group needs a scale that f16 cannot hold: its weights would be lost."""
    largest = stats[2].max()
    if not largest <= MAX_F16:
        raise WeightRangeError(
            f"quantise: a weight group needs scale {largest:.3g}, over f16's {MAX_F16:g}: use the f32 or bf16 recipe"
        )


def _int4_scales(flat: F32Array, codes: F32Array) -> F32Array:
    """The best refitted scale of each group of flat [8, groups, 4]; 0 for a group of zeros. `codes` is scratch."""
    high, low = _extremes(flat)
    extreme = np.where(high > -low, high, low)
    product = np.empty_like(flat)
    best, scales = np.zeros_like(extreme), np.zeros_like(extreme)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for reach in INT4_REACH:
            inverse: F32Array = np.divide(np.float32(-reach), extreme)
            inverse[np.isinf(inverse)] = 0
            _rounded(flat, inverse, -8, 7, codes)
            along = _group_sums(np.multiply(codes, flat, out=product))
            norm = _group_sums(np.multiply(codes, codes, out=product))
            # Refitting the scale to along/norm lowers the squared error by along^2/norm.
            fitted = along / norm
            gain = along * fitted
            better = gain > best
            np.copyto(best, gain, where=better)
            np.copyto(scales, fitted, where=better)
    return scales


def _flat(quads: F32Array) -> F32Array:
    """[8, panels, blocks, 16, 4] as [8, groups, 4]."""
    return quads.reshape(quads.shape[0], -1, 4)


def _extremes(flat: F32Array) -> tuple[F32Array, F32Array]:
    """The largest and the smallest value of each group."""
    return _within_quads(np.maximum, flat.max(axis=0)), _within_quads(np.minimum, flat.min(axis=0))


def _group_sums(products: F32Array) -> F32Array:
    """The sum of each group: first over the quads, then (0 + 2) + (1 + 3) within one."""
    return _within_quads(np.add, np.add.reduce(products, axis=0))


def _within_quads(combine: np.ufunc, quads: F32Array) -> F32Array:
    """[groups, 4] combined to [groups], column by column: a reduction over the last axis would be loops of four."""
    combined: F32Array = combine(combine(quads[:, 0], quads[:, 2]), combine(quads[:, 1], quads[:, 3]))
    return combined


def _rounded(flat: F32Array, inverse: F32Array, low: float, high: float, out: F32Array) -> F32Array:
    """clip(rint(flat * inverse)) into `out`, inverse given per group."""
    # A repeated row makes the product one long loop; a broadcast last axis would be loops of four.
    np.multiply(flat.reshape(len(flat), -1), np.repeat(inverse, 4), out=out.reshape(len(flat), -1))
    np.rint(out, out=out)
    return np.clip(out, np.float32(low), np.float32(high), out=out)


def _to_f16(scales: F32Array) -> F16Array:
    """Scales rounded to f16, without negative zeros: a zero group is all zero bytes."""
    with np.errstate(over="ignore"):  # refuse_overflow reports it
        return scales.astype(np.float16) + np.float16(0)


def _count(stats: Stats, flat: F32Array, codes: F32Array, scales: F16Array, exact: F32Array) -> None:
    """Add the groups' energy and error to their rows' statistics in order, and keep the largest scale of each row."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.multiply(codes.reshape(len(flat), -1), np.repeat(scales.astype(np.float32), 4))
        error = np.subtract(flat, product.reshape(flat.shape))
        parts = (_group_sums(np.multiply(flat, flat)), _group_sums(np.multiply(error, error)))
    for row, part in zip(stats, parts, strict=False):
        groups = part.reshape(-1, PANEL_ROWS).astype(np.float64)
        row[...] = np.add.reduce(np.concatenate([row[None], groups]), axis=0)
    stats[2] = np.maximum(stats[2], np.abs(exact).reshape(-1, PANEL_ROWS).max(axis=0))


def _inverse(scales: F16Array) -> F32Array:
    """1 / scale in float32, 0 where the scale is 0."""
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / scales.astype(np.float32)
    inverse[scales == 0] = 0
    return inverse
