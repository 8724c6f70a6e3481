"""Second half of a KV block: weights times values, summed over the block's positions in ascending order.

A sum is one chain of fma a (row, dimension). Positions that every row of the tile sees go through a loop without
masks; the few at the edges (keys of the tile's own later rows, keys about to leave a window) are added row by row
under a select, so that whatever a masked position holds, even NaN, leaves the row untouched.
"""

from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.codegen.dsl import Ptr, V, const, convert, fma, for_, i64, maximum, minimum, select, splat
from goinfer.codegen.kernels.attention_rows import SCORE_ROW, Block, Rows, Scratch, Shape


def emit_values(shape: Shape, scratch: Scratch, rows: Rows, block: Block) -> None:
    """Write partial[row][dimension] of the block for all rows, some vectors of dimensions at a time."""
    together = 8 if rows.size == 1 else 2
    whole, left = divmod(shape.value_vectors, together)
    with for_(0, whole) as loop:
        _some_dimensions(shape, scratch, rows, block, loop.iv * together, together)
    if left:
        _some_dimensions(shape, scratch, rows, block, i64(whole * together), left)


def _some_dimensions(shape: Shape, scratch: Scratch, rows: Rows, block: Block, first: V, vectors: int) -> None:
    """The `vectors` vectors of dimensions that begin at vector `first`."""
    zero = const(0.0, ("f32", shape.lanes))
    column = first * shape.lanes
    with for_(block.lo & -PAGE, block.hi, PAGE, carry=[zero] * (rows.size * vectors)) as loop:
        lo, hi = maximum(block.lo, loop.iv), minimum(block.hi, loop.iv + PAGE)
        values = rows.head_of(loop.iv) + shape.kv.values + column * shape.kv.width
        sums = loop.args
        if rows.size == 1:
            sums = _plain(shape, scratch, rows, block, values, lo, hi, sums)
        else:
            shared_lo = minimum(maximum(rows.oldest(rows.count - 1), lo), hi)
            shared_hi = minimum(maximum(rows.first + 1, shared_lo), hi)
            sums = _masked(shape, scratch, rows, block, values, lo, shared_lo, sums)
            sums = _plain(shape, scratch, rows, block, values, shared_lo, shared_hi, sums)
            sums = _masked(shape, scratch, rows, block, values, shared_hi, hi, sums)
        loop.next(*sums)
    for i in range(rows.size):
        for j in range(vectors):
            out = scratch.partial + (i * shape.value_bytes + 4 * j * shape.lanes) + column * 4
            out.store(loop.results[i * vectors + j], 4)


def _plain(shape: Shape, scratch: Scratch, rows: Rows, block: Block, values: Ptr, lo: V, hi: V, sums: list[V]) -> list[V]:
    """Add positions [lo, hi) of one page, all of them seen by every row."""
    lanes, kv = shape.lanes, shape.kv
    vectors = len(sums) // rows.size
    with for_(lo, hi, carry=sums) as loop:
        line = values + (loop.iv & (PAGE - 1)) * kv.value_row_bytes
        loaded = [kv.load(line + j * lanes * kv.width, lanes) for j in range(vectors)]
        weights = scratch.scores + (loop.iv - block.start) * 4
        out = []
        for i in range(rows.size):
            weight = splat((weights + i * SCORE_ROW).load("f32", 4), lanes)
            out += [fma(weight, v, loop.args[i * vectors + j]) for j, v in enumerate(loaded)]
        loop.next(*out)
    return loop.results


def _masked(shape: Shape, scratch: Scratch, rows: Rows, block: Block, values: Ptr, lo: V, hi: V, sums: list[V]) -> list[V]:
    """Add positions [lo, hi) of one page, each to the rows that see it."""
    lanes, kv = shape.lanes, shape.kv
    vectors = len(sums) // rows.size
    with for_(lo, hi, carry=sums) as loop:
        position = splat(convert(loop.iv, "i32"), lanes)
        line = values + (loop.iv & (PAGE - 1)) * kv.value_row_bytes
        loaded = [kv.load(line + j * lanes * kv.width, lanes) for j in range(vectors)]
        weights = scratch.scores + (loop.iv - block.start) * 4
        out = []
        for i in range(rows.size):
            newest, oldest = rows.first + i, rows.oldest(i)
            seen = (position <= splat(convert(newest, "i32"), lanes)) & (
                position >= splat(convert(oldest, "i32"), lanes)
            )
            weight = splat((weights + i * SCORE_ROW).load("f32", 4), lanes)
            for j, v in enumerate(loaded):
                old = loop.args[i * vectors + j]
                out.append(select(seen, fma(weight, v, old), old))
        loop.next(*out)
    return loop.results
