"""The quantisers' inner loops as machine code: the same bits as search.py, several times as fast.

search.py says what is computed; this file says it again for vectors. A vector holds quads (4 neighbouring k) of
`lanes / 4` rows, so a group of 32 is 8 vectors, nothing crosses rows, and every sum has search.py's order.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from goinfer.compiler.quant.panels import BLOCK_K, PANEL_ROWS, QUADS, blocks_of
from goinfer.compiler.quant.search import INT4_REACH, Stats

if TYPE_CHECKING:
    from goinfer.codegen.dsl import Ptr, V


def pack(name: str, w: npt.NDArray[np.float32], out: npt.NDArray[np.uint8], stats: Stats) -> bool:
    """Quantise a padded contiguous matrix to `name` ("int4", "int8") into out [panels, blocks, bytes]; add to stats.

    False, with nothing written, where this machine cannot run the code.
    """
    code = _functions()
    if code is None:
        return False
    panels, blocks = blocks_of(*w.shape)
    code[name](w.ctypes.data, w.strides[0], panels, blocks, out.ctypes.data, out.shape[2], stats.ctypes.data)
    return True


@functools.cache
def _functions() -> dict[str, Any] | None:
    """The compiled functions by format, with the memory they live in."""
    from goinfer.codegen import cache
    from goinfer.codegen.host import compile_for_host

    code = compile_for_host(_define, f"quantise {cache.sources('compiler/quant')}")
    if code is None:
        return None
    signature = [ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    return {"memory": code, **{name: code.function(name, *signature) for name in ("int4", "int8")}}


def _define(module: Any, target: Any) -> None:
    """Add `int4` and `int8` (w, row stride, panels, blocks, out, block bytes, stats) to an MLIR module."""
    from goinfer.codegen.dsl import for_
    from goinfer.codegen.kernel import define_function

    def define(name: str, rows_of_block: Callable[..., None]) -> None:
        def body(w: Ptr, stride: V, panels: V, blocks: V, out: Ptr, *rest: Any) -> None:
            block_bytes, stats = rest
            with for_(0, panels) as panel, for_(0, blocks) as block, for_(0, PANEL_ROWS, target.lanes // 4) as row:
                rows = w + (panel.iv * PANEL_ROWS + row.iv) * stride + block.iv * (4 * BLOCK_K)
                values = [_quad(rows, stride, j, target.lanes // 4) for j in range(QUADS)]
                place = out + (panel.iv * blocks + block.iv) * block_bytes
                scales = place + (block_bytes - 2 * PANEL_ROWS) + row.iv * 2
                rows_of_block(values, place + row.iv * 4, scales, stats + row.iv * 8)

        define_function(module, name, ("ptr", "i64", "i64", "i64", "ptr", "i64", "ptr"), body)

    define("int4", _int4_rows)
    define("int8", _int8_rows)


def _quad(rows: Ptr, stride: V, j: int, count: int) -> V:
    """k 4j .. 4j+3 of `count` rows, side by side."""
    from goinfer.codegen.dsl import shuffle

    parts = [(rows + stride * r + 16 * j).load(("f32", 4), 4) for r in range(count)]
    while len(parts) > 1:
        parts = [shuffle(a, b, range(2 * a.lanes)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _int4_rows(values: list[V], codes: Ptr, scales: Ptr, stats: Ptr) -> None:
    from goinfer.codegen.dsl import convert

    exact = _int4_scale(values)
    scale = _store_scale(exact, convert(exact, "f16"), scales)
    rounded = _rounded(values, _inverse(scale), -8, 7)
    nibbles = [convert(q + 8.0, "i32") for q in rounded]
    for load in range(4):
        byte = nibbles[2 * load] | (nibbles[2 * load + 1] << 4)
        (codes + 64 * load).store(convert(byte, "i8"))
    _count(stats, values, rounded, scale, exact)


def _int8_rows(values: list[V], codes: Ptr, scales: Ptr, stats: Ptr) -> None:
    from goinfer.codegen.dsl import bitcast, convert, fmax_fast, select

    high, low = _extremes(values)
    largest = fmax_fast(high, -low)
    exact = largest / 127.0
    half = convert(exact, "f16")
    bits = bitcast(half, ("i16", half.lanes))
    next_up = bitcast(bits + 1, half.spec)
    half = select(convert(half, "f32") * 127.5 < largest, next_up, half)
    scale = _store_scale(exact, half, scales)
    rounded = _rounded(values, _inverse(scale), -127, 127)
    for j, q in enumerate(rounded):
        (codes + 64 * j).store(convert(convert(q, "i32"), "i8"))
    _count(stats, values, rounded, scale, exact)


def _int4_scale(values: list[V]) -> V:
    """search._int4_scales of a group, in every lane of its quad."""
    from goinfer.codegen.dsl import abs_, const, select

    high, low = _extremes(values)
    extreme = select(high > -low, high, low)
    best = scale = const(0.0, extreme.spec)
    for reach in INT4_REACH:
        inverse = const(-reach, extreme.spec) / extreme
        inverse = select(abs_(inverse).eq(float("inf")), const(0.0, inverse.spec), inverse)
        codes = _rounded(values, inverse, -8, 7)
        along = _group_sum([q * x for q, x in zip(codes, values, strict=True)])
        fitted = along / _group_sum([q * q for q in codes])
        gain = along * fitted
        better = gain > best
        best, scale = select(better, gain, best), select(better, fitted, scale)
    return scale


def _extremes(values: list[V]) -> tuple[V, V]:
    """The largest and the smallest value of each group."""
    from goinfer.codegen.dsl import fmax_fast

    return _fold(values, fmax_fast), _fold(values, _minimum)


def _group_sum(products: list[V]) -> V:
    """The sum of each group: over the quads in order, then (0 + 2) + (1 + 3) within one."""
    return _fold(products, lambda a, b: a + b)


def _fold(values: list[V], combine: Callable[[V, V], V]) -> V:
    """All values of a group combined, the result in all four lanes of its quad."""
    from goinfer.codegen.dsl import shuffle

    total = functools.reduce(combine, values)
    for distance in (2, 1):
        total = combine(total, shuffle(total, total, [lane ^ distance for lane in range(total.lanes)]))
    return total


def _minimum(a: V, b: V) -> V:
    from goinfer.codegen.dsl import select

    return select(a < b, a, b)


def _rounded(values: list[V], inverse: V, low: int, high: int) -> list[V]:
    """clip(rint(value * inverse))."""
    from goinfer.codegen.dsl import const, fmax_fast, round_even

    floor, top = const(float(low), inverse.spec), const(float(high), inverse.spec)
    return [_minimum(fmax_fast(round_even(x * inverse), floor), top) for x in values]


def _inverse(scale: V) -> V:
    """1 / scale, 0 for a scale of 0."""
    from goinfer.codegen.dsl import const, select

    return select(scale.eq(0.0), const(0.0, scale.spec), 1.0 / scale)


def _store_scale(exact: V, half: V, place: Ptr) -> V:
    """Store each row's f16 scale, without a negative zero, and give it back as float32."""
    from goinfer.codegen.dsl import convert, extract

    scale = convert(half, "f32") + 0.0
    stored = convert(scale, "f16")
    for row in range(exact.lanes // 4):
        (place + 2 * row).store(extract(stored, 4 * row), 2)
    return scale


def _count(stats: Ptr, values: list[V], codes: list[V], scale: V, exact: V) -> None:
    """Add a group's energy and error to its row's statistics, and keep the largest scale before rounding."""
    from goinfer.codegen.dsl import abs_, convert, extract, fmax_fast

    errors = [x - q * scale for x, q in zip(values, codes, strict=True)]
    energy, error = _group_sum([x * x for x in values]), _group_sum([e * e for e in errors])
    largest = abs_(exact)
    for row in range(scale.lanes // 4):
        for column, add, part in ((0, True, energy), (1, True, error), (2, False, largest)):
            cell = stats + 8 * (column * PANEL_ROWS + row)
            value, old = convert(extract(part, 4 * row), "f64"), cell.load("f64", 8)
            cell.store(old + value if add else fmax_fast(value, old), 8)
