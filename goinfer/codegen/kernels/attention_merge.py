"""Joins the partials of blocks, in ascending order, and writes the finished rows.

Running maximum, sum and weighted sum of values of a line after a block depend on the block's partials and on those
before it alone, whoever computed them, so a context may be cut into blocks that are computed apart.
"""

import math

from goinfer.bundle_format.kernel_abi import GROUP, KV_BLOCK, round_up
from goinfer.codegen.dsl import Ptr, V, const, convert, f32, fma, fmax_fast, for_, if_, select, splat
from goinfer.codegen.kernel import Frame
from goinfer.codegen.kernels.attention_rows import LOWEST, Block, Rows, Scratch, Shape
from goinfer.codegen.quantise_rows import load_group, row_sink
from goinfer.codegen.vecmath import exp_nonpositive


def start(shape: Shape, scratch: Scratch, rows: Rows, sinks: Ptr | None) -> None:
    """State before the first block. A sink is a key without a value, seen by every row; `sinks` are the KV head's."""
    zero = const(0.0, ("f32", shape.lanes))
    with for_(0, rows.count) as row, for_(0, shape.heads) as head:
        at = (row.iv * shape.heads + head.iv) * 4
        (scratch.newest + at).store(convert(rows.first + row.iv, "i32"), 4)
        (scratch.oldest + at).store(convert(rows.oldest(row.iv), "i32"), 4)
        (scratch.total.peaks + at).store(f32(LOWEST) if sinks is None else (sinks + head.iv * 4).load("f32", 4), 4)
        (scratch.total.sums + at).store(f32(0.0 if sinks is None else 1.0), 4)
    with for_(0, rows.lines * shape.value_bytes, 4 * shape.lanes) as column:
        (scratch.total.values + column.iv).store(zero, 4)


def fold(b: Block) -> None:
    """Join a block's partials with what came before: total = total * old factor + partial * new factor.

    Only for the rows that see a key of the block: the partials of others hold anything.
    """
    _factors(b)
    lanes, row_bytes = b.shape.lanes, b.shape.value_bytes
    with for_(0, b.rows.count) as row, if_(b.seen_by(row.iv)), for_(0, b.shape.heads) as head:
        line = row.iv * b.shape.heads + head.iv
        old, new = (splat((p + line * 4).load("f32", 4), lanes) for p in b.scratch.factors)
        with for_(0, row_bytes, 4 * lanes) as column:
            at = line * row_bytes + column.iv
            total, partial = b.scratch.total.values + at, (b.out.values + at).load(("f32", lanes), 4)
            total.store(fma(partial, new, total.load(("f32", lanes), 4) * old), 4)


def _factors(b: Block) -> None:
    """New maximum and sum, and the factors that the earlier and the new part get, for a vector of lines at a time."""
    spec = ("f32", b.shape.lanes)
    total, (old_factors, new_factors) = b.scratch.total, b.scratch.factors
    first, end = (splat(convert(x, "i32"), b.shape.lanes) for x in (b.start, b.start + KV_BLOCK))
    with for_(0, b.rows.lines * 4, 4 * b.shape.lanes) as loop:
        at = loop.iv
        newest, oldest = ((p + at).load(("i32", b.shape.lanes), 4) for p in (b.scratch.newest, b.scratch.oldest))
        seen = (newest >= first) & (oldest < end)
        old_peak, old_sum = (total.peaks + at).load(spec, 4), (total.sums + at).load(spec, 4)
        peak, added = (b.out.peaks + at).load(spec, 4), (b.out.sums + at).load(spec, 4)
        new_peak = fmax_fast(peak, old_peak)
        old_factor, new_factor = exp_nonpositive(old_peak - new_peak), exp_nonpositive(peak - new_peak)
        (old_factors + at).store(old_factor, 4)
        (new_factors + at).store(new_factor, 4)
        (total.peaks + at).store(select(seen, new_peak, old_peak), 4)
        (total.sums + at).store(select(seen, fma(added, new_factor, old_sum * old_factor), old_sum), 4)


def finish(frame: Frame, shape: Shape, scratch: Scratch, rows: Rows, out: Ptr, kv_head: V) -> None:
    """Divide by the sums and write the rows; `out` is the first of them."""
    with for_(0, rows.count) as row, for_(0, shape.heads) as head:
        line = row.iv * shape.heads + head.iv
        total = scratch.total.values + line * shape.value_bytes
        divisor = (scratch.total.sums + line * 4).load("f32", 4)
        write = _write_q8 if frame.attrs["out"] == "q8" else _write_f32
        write(frame, total, divisor, out + row.iv * frame.int(1), kv_head * shape.heads + head.iv)


def _write_q8(frame: Frame, total: Ptr, divisor: V, row: Ptr, head: V) -> None:
    """The head's groups of a row of int8 activations."""
    head_dim = frame.attrs["head_dim"]
    sink = row_sink("q8", row)
    with for_(0, head_dim // GROUP) as loop:
        values = load_group(frame.target, total + loop.iv * (4 * GROUP))
        sink(head * (head_dim // GROUP) + loop.iv, [v / splat(divisor, v.lanes) for v in values])


def _write_f32(frame: Frame, total: Ptr, divisor: V, row: Ptr, head: V) -> None:
    """The head's part of an f32 row; the last head adds zeros up to a whole group."""
    head_dim, n_heads = frame.attrs["head_dim"], frame.attrs["n_heads"]
    lanes, width = math.gcd(head_dim, frame.target.lanes), n_heads * head_dim
    out = row + head * (4 * head_dim)
    with for_(0, 4 * head_dim, 4 * lanes) as column:
        value = (total + column.iv).load(("f32", lanes), 4)
        (out + column.iv).store(value / splat(divisor, lanes), 4)
    missing = round_up(width, GROUP) - width
    if missing:
        with if_(head.eq(n_heads - 1)), for_(0, missing) as loop:
            (row + (4 * width) + loop.iv * 4).store(f32(0.0), 4)
