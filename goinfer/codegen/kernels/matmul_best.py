"""The head of a greedy token: of every panel of 16 logits only the largest and its index are kept.

Static attributes: format, bias, domain (as in matmul.py).
Operands: 0 weights, 1 X, 2 best rows ([panels] of (f32 largest, i32 index)), 3 bias (f32 [N padded]).
Ints: 0 K groups of 32, 1 X row stride, 2 best row stride (bytes), 3 ids that may be chosen (columns from there on are
not looked at). The lowest index wins a tie; a NaN among a panel's logits is its largest. The logits are those that the
matmul kernel stores, bit for bit, so the choice is argmax's.
"""

import math

from goinfer.bundle_format.kernel_abi import PANEL
from goinfer.codegen.dsl import Ptr, V, const, convert, for_, minimum, scratch, select, splat, vector_const
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.kernels.argmax import any_nan, lowest_of_largest
from goinfer.codegen.kernels.matmul_tiles import Product, Store, for_row_tiles, panel_times_rows

BEST_BYTES = 8
"""A panel's entry."""


@kernel("matmul_best")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    product = Product(frame.target, frame.attrs["format"], frame.int(0), frame.ptr(1), frame.int(1))
    logits = scratch(product.tile_rows[0] * 4 * PANEL)
    panels, rows = frame.units, frame.count(frame.attrs["domain"])
    with for_(frame.tile0, frame.tile1) as tiles:
        panel = tiles.iv % panels
        start = tiles.iv // panels * frame.row_tile
        stop = minimum(start + frame.row_tile, rows)
        weights = frame.ptr(0) + panel * product.panel_bytes

        def tile(row: V, n_rows: int, panel: V = panel, weights: Ptr = weights) -> None:
            panel_times_rows(product, weights, row, n_rows, _keep(frame, panel, logits))
            for i in range(n_rows):
                out = frame.ptr(2) + (row + i) * frame.int(2) + panel * BEST_BYTES
                _best(frame, panel, logits + 4 * PANEL * i, out)

        for_row_tiles(product, start, stop, tile)


def _keep(frame: Frame, panel: V, logits: Ptr) -> Store:
    """Biased products of a tile's rows to stack memory."""

    def store(i: int, part: int, total: V) -> None:
        at = 4 * frame.target.lanes * part
        if frame.attrs["bias"]:
            total = total + (frame.ptr(3) + panel * (4 * PANEL) + at).load(total.spec, 16)
        (logits + (4 * PANEL * i + at)).store(total, 16)

    return store


def _best(frame: Frame, panel: V, logits: Ptr, out: Ptr) -> None:
    """The largest of a panel's logits and its index."""
    lanes = frame.target.lanes
    first = convert(panel * PANEL, "i32")
    limit = splat(convert(frame.int(3), "i32"), lanes)
    values, where = [], []
    bad = const(0.0, ("f32", lanes))
    for part in range(PANEL // lanes):
        index = splat(first, lanes) + vector_const(range(lanes * part, lanes * (part + 1)), "i32")
        value = (logits + 4 * lanes * part).load(("f32", lanes), 16)
        value = select(index < limit, value, const(-math.inf, value.spec))
        bad = select(value.ne(value), value, bad)
        values.append(value)
        where.append(index)
    token, peak = lowest_of_largest(values, where)
    out.store(select(any_nan(bad), const(math.nan, "f32"), peak), 4)
    (out + 4).store(token, 4)
