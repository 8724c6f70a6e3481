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

_ROWS = 48
"""Rows whose products are kept at a time (whole register tiles): they leave the first cache to a panel of weights."""

_ROW_BYTES = 4 * 2 * GROUP
"""A row of products: a group of gate, a group of up."""


@dataclass(frozen=True)
class _Problem:
    frame: Frame
    product: Product
    act: Callable[[V], V]
    kept: Ptr

    def bias(self, panel: V) -> Ptr | None:
        """The bias of a panel's outputs."""
        return self.frame.ptr(3) + panel * (4 * PANEL) if self.frame.attrs["bias"] else None


@kernel("matmul_gated")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    product = Product(frame.target, frame.attrs["format"], frame.int(0), frame.ptr(1), frame.int(1))
    problem = _Problem(frame, product, activation(frame.attrs["act"]), scratch(_ROWS * _ROW_BYTES))
    rows = frame.count(frame.attrs["domain"])
    with for_(frame.tile0, frame.tile1) as tiles:
        unit = tiles.iv % frame.units
        start = tiles.iv // frame.units * frame.row_tile
        stop = minimum(start + frame.row_tile, rows)
        with for_(start, stop, _ROWS) as block:
            _block(problem, unit, block.iv, minimum(block.iv + _ROWS, stop))


def _block(p: _Problem, unit: V, start: V, stop: V) -> None:
    """Products of four panels with rows [start, stop), then the activation of each row."""
    half = p.frame.int(3) // PANEL
    with for_(0, 4) as loop:
        panel = unit * 2 + loop.iv % 2 + loop.iv // 2 * half
        _products(p, panel, start, stop, p.kept + loop.iv * (4 * PANEL))
    with for_(start, stop) as loop:
        row = p.kept + (loop.iv - start) * _ROW_BYTES
        gate, up = load_group(p.frame.target, row, 16), load_group(p.frame.target, row + 4 * GROUP, 16)
        sink = row_sink(p.frame.attrs["out"], p.frame.ptr(2) + loop.iv * p.frame.int(2))
        sink(unit, [p.act(g) * u for g, u in zip(gate, up, strict=True)])


def _products(p: _Problem, panel: V, start: V, stop: V, out: Ptr) -> None:
    """One panel's products with rows [start, stop), to column 0 of the kept rows at `out`."""
    weights, bias = p.frame.ptr(0) + panel * p.product.panel_bytes, p.bias(panel)

    def store(row: V) -> Store:
        def vector(i: int, part: int, total: V) -> None:
            at = 4 * p.frame.target.lanes * part
            if bias is not None:
                total = total + (bias + at).load(total.spec, 16)
            (out + (row - start + i) * _ROW_BYTES + at).store(total, 16)

        return vector

    for_row_tiles(p.product, start, stop, lambda row, n: panel_times_rows(p.product, weights, row, n, store(row)))
