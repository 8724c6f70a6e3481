"""Third part of a KV block: weights times values, summed over the block's positions in ascending order.

A sum is one chain of fma a (line, dimension), kept in the block's partials between stretches of positions. Positions
that every row of the pass sees are added for all lines. The few at the edges (keys of the pass's own later rows, keys
about to leave a window) are added row by row, so that whatever a position holds, even NaN, leaves the rows that do not
see it untouched.
"""

from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.codegen.dsl import (
    CACHE_LINE,
    Ptr,
    V,
    const,
    fma,
    for_,
    i64,
    if_,
    if_else,
    maximum,
    minimum,
    prefetch,
    select,
    splat,
)
from goinfer.codegen.kernels.attention_rows import SCORE_ROW, TILE_LINES, Block, copy_as_f32, whole_tiles
from goinfer.codegen.kernels.kv_cache import KvLayout

Span = tuple[V, V]
"""Positions from, up to."""


def emit_values(b: Block) -> None:
    """Write the block's sums of all lines to its partials."""
    zero = const(0.0, ("f32", b.shape.lanes))
    lone = b.rows.count.eq(1)
    lines = select(lone, b.rows.lines, whole_tiles(b.rows.lines))
    with for_(0, lines * b.shape.value_bytes, 4 * b.shape.lanes) as loop:
        (b.out.values + loop.iv).store(zero, 4)
    if_else(lone, lambda: _lone(b), lambda: _many(b))


def _lone(b: Block) -> None:
    """A lone row sees every position in [lo, hi). Its values are converted as they are loaded."""
    kv = b.shape.kv
    with for_(b.lo & -PAGE, b.hi, PAGE) as page:
        values = _Values(kv, b.rows.head_of(page.iv) + kv.values, page.iv, b.after_values(page.iv))
        _add_row(b, values, i64(0), (maximum(b.lo, page.iv), minimum(b.hi, page.iv + PAGE)))


def _many(b: Block) -> None:
    rows, stretch = b.rows, b.shape.value_stretch
    with for_(b.lo & -stretch, b.hi, stretch) as loop:
        lo, hi = maximum(b.lo, loop.iv), minimum(b.hi, loop.iv + stretch)
        values = _values_in_f32(b, loop.iv, (lo, hi))
        shared_lo = minimum(maximum(rows.oldest(rows.count - 1), lo), hi)
        shared_hi = minimum(maximum(rows.first + 1, shared_lo), hi)
        with if_(lo < shared_lo), for_(0, rows.count) as row:
            _add_row(b, values, row.iv, (maximum(lo, rows.oldest(row.iv)), shared_lo))
        with for_(0, rows.lines, TILE_LINES) as lines:
            _add(b, values, (lines.iv, TILE_LINES), (shared_lo, shared_hi))
        with if_(shared_hi < hi), for_(0, rows.count) as row:
            _add_row(b, values, row.iv, (shared_hi, minimum(hi, rows.first + row.iv + 1)))


@dataclass(frozen=True)
class _Values:
    """Values of the positions from `start` on, laid out as `kv` says; `ahead` is what to ask for meanwhile."""

    kv: KvLayout
    at: Ptr
    start: V
    ahead: Ptr | None = None


def _values_in_f32(b: Block, start: V, span: Span) -> _Values:
    """The values of a span of the stretch that begins at `start`, converted unless they are f32 already."""
    kv, in_f32 = b.shape.kv, KvLayout(b.shape.kv.head_dim, "f32")
    stored = b.rows.head_of(start) + kv.values + (start & (PAGE - 1)) * kv.value_row_bytes
    if kv.dtype == "f32":
        return _Values(kv, stored, start)
    first, out = span[0] - start, b.scratch.values
    copy_as_f32(
        b.shape, stored + first * kv.value_row_bytes, out + first * in_f32.value_row_bytes,
        (span[1] - span[0]) * kv.value_dims,
    )  # fmt: skip
    return _Values(in_f32, out, start)


def _add_row(b: Block, values: _Values, row: V, span: Span) -> None:
    """Add the positions of a span to all lines of one row."""
    for lines in b.shape.lone_parts:
        _add(b, values, (row * b.shape.heads + lines.start, len(lines)), span)


def _add(b: Block, values: _Values, lines: tuple[V, int], span: Span) -> None:
    """Add the positions of a span to the partials of lines (first, number), some vectors of dimensions at a time."""
    together = b.shape.fitting_vectors(lines[1])
    whole, left = divmod(b.shape.kv.value_dims // b.shape.lanes, together)
    with for_(0, whole) as loop:
        _add_dimensions(b, values, lines, span, (loop.iv * (together * b.shape.lanes), together))
    if left:
        _add_dimensions(b, values, lines, span, (i64(whole * together * b.shape.lanes), left))


def _add_dimensions(b: Block, values: _Values, lines: tuple[V, int], span: Span, dimensions: tuple[V, int]) -> None:
    """The same for the vectors of dimensions (first dimension, vectors)."""
    (line, size), (first, vectors), lanes, row_bytes = lines, dimensions, b.shape.lanes, b.shape.value_bytes
    out = b.out.values + line * row_bytes + first * 4
    places = [out + (i * row_bytes + 4 * j * lanes) for i in range(size) for j in range(vectors)]
    column, weights = values.at + first * values.kv.width, b.scratch.scores + line * SCORE_ROW
    with for_(*span, carry=[p.load(("f32", lanes), 4) for p in places]) as loop:
        at = column + (loop.iv - values.start) * values.kv.value_row_bytes
        loaded = [values.kv.load(at + j * lanes * values.kv.width, lanes) for j in range(vectors)]
        if values.ahead is not None:
            soon = values.ahead + first * values.kv.width + (loop.iv - values.start) * values.kv.value_row_bytes
            for offset in range(0, vectors * lanes * values.kv.width, CACHE_LINE):
                prefetch(soon + offset)
        weight_at, sums = weights + b.column(loop.iv), []
        for i in range(size):
            weight = splat((weight_at + i * SCORE_ROW).load("f32", 4), lanes)
            sums += [fma(weight, v, loop.args[i * vectors + j]) for j, v in enumerate(loaded)]
        loop.next(*sums)
    for place, total in zip(places, loop.results, strict=True):
        place.store(total, 4)
