"""Matrix products Y[r, n] = sum_k X[r, k] * W[n, k] over packed weights, for every weight format and target.

A tile is one panel of 16 outputs times a block of rows (the step's row_tile); see matmul_tiles.py for its inside.

Static attributes: format (f32, bf16, int8, int8int8, int4, int4min), epilogue ("store" or "add": Y += product), bias,
domain.
Operands: 0 weights, 1 X (f32 rows; q8 rows for int8int8, int4 and int4min), 2 Y (f32 rows), 3 bias (f32 [N padded]).
Ints: 0 K groups of 32, 1 X row stride, 2 Y row stride (bytes).
"""

from goinfer.bundle_format.kernel_abi import PANEL
from goinfer.codegen.dsl import V, for_, i64, minimum
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.kernels.matmul_tiles import Product, Store, for_panels, for_row_tiles, panel_times_rows


@kernel("matmul")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    product = Product(frame.target, frame.attrs["format"], frame.int(0), frame.ptr(1), frame.int(1))
    rows = frame.count(frame.attrs["domain"])

    def stretch(block: V, first: V, past: V) -> None:
        start = block * frame.row_tile
        stop = minimum(start + frame.row_tile, rows)

        def tile(row: V, n_rows: int) -> None:
            with for_(first, past) as panels:
                weights = frame.ptr(0) + panels.iv * product.panel_bytes
                panel_times_rows(product, weights, row, n_rows, _epilogue(frame, row, panels.iv))

        for_row_tiles(product, start, stop, tile)

    for_panels(frame, product, stretch)


def _epilogue(frame: Frame, row: V, panel: V) -> Store:
    """Adds the bias, and adds into or stores to Y."""
    lanes = frame.target.lanes

    def store(i: int, part: int, total: V) -> None:
        at = panel * i64(4 * PANEL) + 4 * lanes * part
        out = frame.ptr(2) + (row + i) * frame.int(2) + at
        if frame.attrs["bias"]:
            total = total + (frame.ptr(3) + at).load(("f32", lanes), 16)
        if frame.attrs["epilogue"] == "add":
            total = out.load(("f32", lanes), 16) + total
        out.store(total, 16)

    return store
