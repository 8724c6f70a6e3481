"""First part of a KV block: scores of every line against the block's keys.

A score is one chain of fma over the dimensions in ascending order, whichever lines and positions are computed beside
it.
"""

from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.codegen.dsl import CACHE_LINE, Ptr, V, const, fma, for_, if_else, prefetch, splat
from goinfer.codegen.kernels.attention_rows import SCORE_ROW, TILE_LINES, Block, copy_as_f32
from goinfer.codegen.kernels.kv_cache import KEY_GROUP, KvLayout


def emit_scores(b: Block) -> None:
    """Write the scores of every line and every stretch of positions that [lo, hi) touches.

    A stretch lies in one page, so reading a whole one is harmless. A lone row's lines share each key as it is loaded;
    more rows share a stretch that is converted to f32 once.
    """
    if_else(b.rows.count.eq(1), lambda: _lone(b), lambda: _many(b))


def _lone(b: Block) -> None:
    for lines in b.shape.lone_parts:
        vectors = b.shape.fitting_vectors(len(lines))
        span = vectors * b.shape.lanes
        with for_(b.lo & -span, b.hi, span) as loop:
            place = loop.iv & (PAGE - 1)
            keys = b.rows.head_of(loop.iv) + (place >> 4) * b.shape.kv.key_group_bytes
            keys = keys + (place & (KEY_GROUP - 1)) * b.shape.kv.width
            queries = b.rows.queries + lines.start * b.shape.query_bytes
            ahead = b.after_keys(loop.iv) + (place >> 4) * b.shape.kv.key_group_bytes
            sums = _dot_products(b, b.shape.kv, keys, queries, len(lines), vectors, ahead)
            _store(b, loop.iv, b.scratch.scores + lines.start * SCORE_ROW, sums, vectors)


def _many(b: Block) -> None:
    shape, vectors = b.shape, b.shape.tile_vectors
    span = vectors * shape.lanes
    in_f32 = KvLayout(shape.kv.head_dim, "f32")
    with for_(b.lo & -span, b.hi, span) as loop:
        keys = b.rows.head_of(loop.iv) + ((loop.iv & (PAGE - 1)) >> 4) * shape.kv.key_group_bytes
        if shape.kv.dtype != "f32":
            keys = copy_as_f32(shape, keys, b.scratch.keys, span * shape.kv.head_dim)
        with for_(0, b.rows.lines, TILE_LINES) as tile:
            queries = b.rows.queries + tile.iv * shape.query_bytes
            sums = _dot_products(b, in_f32, keys, queries, TILE_LINES, vectors)
            _store(b, loop.iv, b.scratch.scores + tile.iv * SCORE_ROW, sums, vectors)


def _dot_products(
    b: Block, kv: KvLayout, keys: Ptr, queries: Ptr, lines: int, vectors: int, ahead: Ptr | None = None
) -> list[V]:
    """Query times key for some vectors of positions, ordered by line, then by vector; `kv` is how the keys lie.

    While they are read, as many bytes from `ahead` on are asked for.
    """
    lanes = b.shape.lanes
    zero = const(0.0, ("f32", lanes))
    offsets = [divmod(v * lanes, KEY_GROUP) for v in range(vectors)]
    with for_(0, kv.head_dim, carry=[zero] * (lines * vectors)) as loop:
        at = keys + loop.iv * (KEY_GROUP * kv.width)
        loaded = [kv.load(at + (group * kv.key_group_bytes + i * kv.width), lanes) for group, i in offsets]
        if ahead is not None:
            step = vectors * lanes * kv.width
            for offset in range(0, step, CACHE_LINE):
                prefetch(ahead + loop.iv * step + offset)
        query, out = queries + loop.iv * 4, []
        for line in range(lines):
            q = splat((query + line * b.shape.query_bytes).load("f32", 4), lanes)
            out += [fma(k, q, loop.args[line * vectors + v]) for v, k in enumerate(loaded)]
        loop.next(*out)
    return loop.results


def _store(b: Block, position: V, scores: Ptr, sums: list[V], vectors: int) -> None:
    """Write sums ordered by line, then by vector, times the keys' scales where there are any."""
    lanes, kv = b.shape.lanes, b.shape.kv
    scales = b.rows.head_of(position) + kv.key_scales + (position & (PAGE - 1)) * 4
    for v in range(vectors):
        scale = (scales + 4 * v * lanes).load(("f32", lanes), 4) if kv.scaled else None
        for line in range(len(sums) // vectors):
            score = sums[line * vectors + v]
            out = scores + (line * SCORE_ROW + 4 * v * lanes) + b.column(position)
            out.store(score if scale is None else score * scale, 4)
