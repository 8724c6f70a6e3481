"""The first half of a gated MLP in one step: act(X gate^T) * (X up^T), from packed weights to the rows of the result.

A unit is 32 outputs: two panels of gate rows and the two panels of up rows that go with them. Their products lie in
stack memory only; a pass over it applies the activation and stores a whole group, quantised where asked for. The bytes
are those of a matmul followed by gate_act.

Static attributes: format (as in matmul.py), bias, domain, act (a name in gate_act.ACTIVATIONS), out ("f32" or "q8").
Operands: 0 weights [gate I | up I], 1 X (f32 rows; q8 rows for formats of codes), 2 out rows [I], 3 bias (f32 [2 I]).
Ints: 0 K groups of 32, 1 X row stride, 2 out stride (bytes), 3 I (a multiple of 32). Units: I / 32.
"""

from collections.abc import Callable
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP, PANEL
from goinfer.codegen.dsl import Ptr, V, for_, minimum, scratch
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.kernels.gate_act import activation
from goinfer.codegen.kernels.matmul_tiles import Product, Store, for_row_tiles, panel_times_rows
from goinfer.codegen.quantise_rows import load_group, row_sink

_ROW_BYTES = 4 * 2 * GROUP
"""A row of products: a group of gate, a group of up."""


@dataclass(frozen=True)
class _Problem:
    frame: Frame
    product: Product
    act: Callable[[V], V]
    kept: Ptr
    """Stack memory for the products of a register tile."""


@kernel("matmul_gated")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    product = Product(frame.target, frame.attrs["format"], frame.int(0), frame.ptr(1), frame.int(1))
    kept = scratch(product.tile_rows[0] * _ROW_BYTES)
    problem = _Problem(frame, product, activation(frame.attrs["act"]), kept)
    rows = frame.count(frame.attrs["domain"])
    with for_(frame.tile0, frame.tile1) as tiles:
        unit = tiles.iv % frame.units
        start = tiles.iv // frame.units * frame.row_tile
        stop = minimum(start + frame.row_tile, rows)

        def tile(row: V, n_rows: int, unit: V = unit) -> None:
            _register_tile(problem, unit, row, n_rows)

        for_row_tiles(product, start, stop, tile)


def _register_tile(p: _Problem, unit: V, row: V, n_rows: int) -> None:
    """Products of four panels with some rows, which stay in the first cache meanwhile, then the activation."""
    half = p.frame.int(3) // PANEL
    with for_(0, 4) as loop:
        panel = unit * 2 + loop.iv % 2 + loop.iv // 2 * half
        weights = p.frame.ptr(0) + panel * p.product.panel_bytes
        panel_times_rows(p.product, weights, row, n_rows, _keep(p, panel, p.kept + loop.iv * (4 * PANEL)))
    with for_(0, n_rows) as loop:
        kept = p.kept + loop.iv * _ROW_BYTES
        gate, up = load_group(p.frame.target, kept, 16), load_group(p.frame.target, kept + 4 * GROUP, 16)
        sink = row_sink(p.frame.attrs["out"], p.frame.ptr(2) + (row + loop.iv) * p.frame.int(2))
        sink(unit, [p.act(g) * u for g, u in zip(gate, up, strict=True)])


def _keep(p: _Problem, panel: V, out: Ptr) -> Store:
    """Biased products of a panel to a column of the kept rows."""
    bias = p.frame.ptr(3) + panel * (4 * PANEL) if p.frame.attrs["bias"] else None

    def store(i: int, part: int, total: V) -> None:
        at = 4 * p.frame.target.lanes * part
        if bias is not None:
            total = total + (bias + at).load(total.spec, 16)
        (out + (_ROW_BYTES * i + at)).store(total, 16)

    return store
