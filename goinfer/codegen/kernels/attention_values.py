"""Second half of a KV block: weights times values, summed over the block's positions in ascending order.

A sum is one chain of fma a (row, dimension). Positions that every row of the tile sees go through a loop without
masks; the few at the edges (keys of the tile's own later rows, keys about to leave a window) are added row by row
under a select, so that whatever a masked position holds, even NaN, leaves the row untouched.
"""

from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.codegen.dsl import Ptr, V, const, convert, fma, for_, i64, maximum, minimum, select, splat
from goinfer.codegen.kernels.attention_rows import SCORE_ROW, Block


def emit_values(b: Block, size: int) -> None:
    """Write the block's sums of `size` rows to `partial`, some vectors of dimensions at a time."""
    together = 8 if size == 1 else 2
    whole, left = divmod(b.shape.value_vectors, together)
    with for_(0, whole) as loop:
        _some_dimensions(b, loop.iv * (together * b.shape.lanes), together, size)
    if left:
        _some_dimensions(b, i64(whole * together * b.shape.lanes), left, size)


def _some_dimensions(b: Block, first: V, vectors: int, size: int) -> None:
    """The `vectors` vectors of dimensions that begin at dimension `first`, page by page."""
    rows, lanes, kv = b.rows, b.shape.lanes, b.shape.kv
    zero = const(0.0, ("f32", lanes))
    with for_(b.lo & -PAGE, b.hi, PAGE, carry=[zero] * (size * vectors)) as loop:
        lo, hi = maximum(b.lo, loop.iv), minimum(b.hi, loop.iv + PAGE)
        values = rows.head_of(loop.iv) + kv.values + first * kv.width
        sums = loop.args
        if size == 1:
            sums = _add_positions(b, values, (lo, hi), sums, 1)
        else:
            shared_lo = minimum(maximum(rows.oldest(rows.count - 1), lo), hi)
            shared_hi = minimum(maximum(rows.first + 1, shared_lo), hi)
            sums = _add_positions(b, values, (lo, shared_lo), sums, size, masked=True)
            sums = _add_positions(b, values, (shared_lo, shared_hi), sums, size)
            sums = _add_positions(b, values, (shared_hi, hi), sums, size, masked=True)
        loop.next(*sums)
    for i in range(size):
        for j in range(vectors):
            out = b.scratch.partial + (i * b.shape.value_bytes + 4 * j * lanes) + first * 4
            out.store(loop.results[i * vectors + j], 4)


def _add_positions(
    b: Block, values: Ptr, span: tuple[V, V], sums: list[V], size: int, *, masked: bool = False
) -> list[V]:
    """Add the positions of a span, inside one page, to every row's sums; if masked, only to the rows that see each."""
    lanes, kv = b.shape.lanes, b.shape.kv
    vectors = len(sums) // size
    with for_(*span, carry=sums) as loop:
        line = values + (loop.iv & (PAGE - 1)) * kv.value_row_bytes
        loaded = [kv.load(line + j * lanes * kv.width, lanes) for j in range(vectors)]
        weights = b.scratch.weights + b.column(loop.iv)
        out = []
        for i in range(size):
            old = loop.args[i * vectors : (i + 1) * vectors]
            weight = splat((weights + i * SCORE_ROW).load("f32", 4), lanes)
            new = [fma(weight, v, o) for v, o in zip(loaded, old, strict=True)]
            if masked:
                seen = _seen(b, i, loop.iv)
                new = [select(seen, n, o) for n, o in zip(new, old, strict=True)]
            out += new
        loop.next(*out)
    return loop.results


def _seen(b: Block, row: int, position: V) -> V:
    """Whether a row sees a position, in every lane."""
    at, newest, oldest = (
        splat(convert(x, "i32"), b.shape.lanes) for x in (position, b.rows.first + row, b.rows.oldest(row))
    )
    return (at <= newest) & (at >= oldest)
