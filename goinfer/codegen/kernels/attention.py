"""Attention of query rows over the paged KV cache, exact in the numerics contract's sense.

Static attributes: head_dim, n_heads, n_kv_heads, kv (f32, f16, int8), out ("f32" or "q8"), softcap, sinks.
Operands: 0 query rows (f32, already scaled), 1 output rows [n_heads * head_dim], 2 page table u64 [slots][max_pages],
3 positions i32, 4 slots i32, 5 attention tiles i32 [n][2] (first row, rows: one slot, consecutive positions),
6 sinks f32 [n_heads]. Ints: 0 query stride, 1 output stride, 2 byte offset of the layer inside a page, 3 max_pages,
4 window (0: none). Floats: 0 softcap. Tiles: unit t % n_heads is the query head, t // n_heads the attention tile.

The cache is walked in blocks of KV_BLOCK absolute positions, ascending. A block yields maximum, sum of exponentials
and weighted sum of values for each row; these are merged into the row's running three. Each of the steps has one
order per row and leaves out masked positions exactly, so a row's bytes depend on its own keys alone. Pages wholly
below every row's window are never touched.
"""

import math
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP, KV_BLOCK, round_up
from goinfer.codegen.dsl import Ptr, V, const, f32, fma, for_, i64, if_, minimum, select, splat
from goinfer.codegen.errors import CompileError
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.kernels.attention_rows import LOWEST, Block, Rows, Scratch, Shape, load_index
from goinfer.codegen.kernels.attention_scores import emit_scores, emit_softmax
from goinfer.codegen.kernels.attention_values import emit_values
from goinfer.codegen.kernels.kv_cache import kv_layout
from goinfer.codegen.quantise_rows import load_group, row_sink

NO_WINDOW = 1 << 40
"""Reach of a row without a window: more than any position."""


@dataclass(frozen=True)
class _Problem:
    """Everything of a call that is the same for all its tiles."""

    frame: Frame
    shape: Shape
    scratch: Scratch
    reach: V

    @property
    def out_width(self) -> int:
        """Numbers in an output row."""
        return int(self.frame.attrs["n_heads"]) * self.shape.kv.head_dim


@kernel("attention")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    attrs = frame.attrs
    if attrs["n_heads"] % attrs["n_kv_heads"]:
        raise CompileError(f"{attrs['n_heads']} query heads do not divide over {attrs['n_kv_heads']} KV heads")
    if attrs["out"] == "q8" and attrs["head_dim"] % GROUP:
        raise CompileError(f"head_dim {attrs['head_dim']} is no multiple of {GROUP}: quantise in a step of its own")
    shape = Shape(frame.target, kv_layout(attrs["head_dim"], attrs["kv"]), attrs["softcap"])
    window = frame.int(4)
    reach = select(window > 0, window, i64(NO_WINDOW))
    problem = _Problem(frame, shape, Scratch.allocate(shape), reach)
    with for_(frame.tile0, frame.tile1) as loop:
        _tile(problem, loop.iv % attrs["n_heads"], loop.iv // attrs["n_heads"])


def _tile(p: _Problem, head: V, tile: V) -> None:
    """One head of one attention tile, by register tiles."""
    first, count = load_index(p.frame, 5, tile * 2), load_index(p.frame, 5, tile * 2 + 1)
    size = p.shape.tile_rows
    with for_(0, count, size) as loop:
        _register_tile(p, head, first + loop.iv, minimum(count - loop.iv, i64(size)))


def _register_tile(p: _Problem, head: V, row: V, count: V) -> None:
    """Walk the cache for `count` rows. Scores and values have code of their own for a lone row."""
    shape, rows = p.shape, _rows(p, head, row, count)
    _start(p, rows, head)
    with for_(rows.oldest(0) & -KV_BLOCK, rows.last + 1, KV_BLOCK) as loop:
        block = Block.of(shape, p.scratch, rows, loop.iv)
        shape.by_row_count(rows, lambda size: emit_scores(block, size))
        emit_softmax(block, p.frame.float(0) if shape.softcap else None)
        shape.by_row_count(rows, lambda size: emit_values(block, size))
        _merge(block)
    _finish(p, rows, head, row)


def _rows(p: _Problem, head: V, row: V, count: V) -> Rows:
    frame, shape = p.frame, p.shape
    ratio = frame.attrs["n_heads"] // frame.attrs["n_kv_heads"]
    queries = frame.ptr(0) + head * (4 * shape.kv.head_dim) + row * frame.int(0)
    pages = frame.ptr(2) + load_index(frame, 4, row) * frame.int(3) * 8
    cache = frame.int(2) + (head // ratio) * shape.kv.head_bytes
    return Rows(count, load_index(frame, 3, row), queries, frame.int(0), pages, cache, p.reach)


def _start(p: _Problem, rows: Rows, head: V) -> None:
    """Running state before the first block; a sink is a key without a value, seen by every row."""
    zero = const(0.0, ("f32", p.shape.lanes))
    peak, total = f32(LOWEST), f32(0.0)
    if p.frame.attrs["sinks"]:
        peak, total = (p.frame.ptr(6) + head * 4).load("f32", 4), f32(1.0)
    with for_(0, rows.count) as loop:
        state = p.scratch.state + loop.iv * 16
        state.store(peak, 4)
        (state + 4).store(total, 4)
        with for_(0, p.shape.value_bytes, 4 * p.shape.lanes) as column:
            (p.scratch.total + loop.iv * p.shape.value_bytes + column.iv).store(zero, 4)


def _merge(b: Block) -> None:
    """total = total * old factor + partial * new factor, for the rows that saw a key."""
    lanes, row_bytes = b.shape.lanes, b.shape.value_bytes
    with for_(0, b.rows.count) as loop, if_(b.seen_by(loop.iv)):
        state = b.scratch.state + loop.iv * 16
        old, new = (splat((state + at).load("f32", 4), lanes) for at in (8, 12))
        with for_(0, row_bytes, 4 * lanes) as column:
            at = loop.iv * row_bytes + column.iv
            total = b.scratch.total + at
            partial = (b.scratch.partial + at).load(("f32", lanes), 4)
            total.store(fma(partial, new, total.load(("f32", lanes), 4) * old), 4)


def _finish(p: _Problem, rows: Rows, head: V, row: V) -> None:
    """Divide by the sums and write the rows."""
    with for_(0, rows.count) as loop:
        total = p.scratch.total + loop.iv * p.shape.value_bytes
        divisor = (p.scratch.state + loop.iv * 16 + 4).load("f32", 4)
        out = p.frame.ptr(1) + (row + loop.iv) * p.frame.int(1)
        if p.frame.attrs["out"] == "q8":
            _write_q8(p, total, divisor, out, head)
        else:
            _write_f32(p, total, divisor, out, head)


def _write_q8(p: _Problem, total: Ptr, divisor: V, row: Ptr, head: V) -> None:
    """The head's groups of a row of int8 activations."""
    groups = p.shape.kv.head_dim // GROUP
    sink = row_sink("q8", row)
    with for_(0, groups) as loop:
        values = load_group(p.frame.target, total + loop.iv * (4 * GROUP))
        sink(head * groups + loop.iv, [v / splat(divisor, v.lanes) for v in values])


def _write_f32(p: _Problem, total: Ptr, divisor: V, row: Ptr, head: V) -> None:
    """The head's part of an f32 row; the last head adds zeros up to a whole group."""
    head_dim, n_heads = p.shape.kv.head_dim, p.frame.attrs["n_heads"]
    width = math.gcd(head_dim, p.shape.lanes)
    out = row + head * (4 * head_dim)
    with for_(0, 4 * head_dim, 4 * width) as column:
        value = (total + column.iv).load(("f32", width), 4)
        (out + column.iv).store(value / splat(divisor, width), 4)
    missing = round_up(p.out_width, GROUP) - p.out_width
    if missing:
        with if_(head.eq(n_heads - 1)), for_(0, missing) as loop:
            (row + (4 * p.out_width) + loop.iv * 4).store(f32(0.0), 4)
