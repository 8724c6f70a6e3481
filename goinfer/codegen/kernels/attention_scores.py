"""First half of a KV block: scores of every row against the block's keys, then their exponentials.

A score is one chain of fma over the dimensions in ascending order, whichever rows and positions are computed beside
it. Maximum and sum of a row run over vectors of positions aligned to absolute position, so vectors that are wholly
masked change nothing and a row's numbers do not depend on how far its tile reaches.
"""

from goinfer.codegen.dsl import (
    Ptr,
    V,
    const,
    convert,
    extract,
    fma,
    fmax_fast,
    for_,
    if_,
    reduce_tree,
    select,
    splat,
    vector_const,
)
from goinfer.codegen.kernels.attention_rows import LOWEST, MASKED, SCORE_ROW, Block, Rows, Scratch, Shape
from goinfer.codegen.kernels.kv_cache import KEY_GROUP
from goinfer.codegen.vecmath import exp_nonpositive, tanh


def emit_scores(shape: Shape, scratch: Scratch, rows: Rows, block: Block) -> None:
    """Write score[row][position - block.start] for every key group that [lo, hi) touches.

    A single row takes the four groups of a page at once, so that enough sums are in flight to hide the fma's latency;
    more rows take one group. A group next to the needed ones lies in the same page, so reading it is harmless.
    """
    groups = 4 if rows.size == 1 else 1
    span = groups * KEY_GROUP
    with for_(block.lo & -span, block.hi, span) as loop:
        head = rows.head_of(loop.iv)
        keys = head + ((loop.iv & 63) >> 4) * shape.kv.key_group_bytes
        sums = _dot_products(shape, rows, keys, groups)
        vectors = span // shape.lanes
        for v in range(vectors):
            scale = None
            if shape.kv.scaled:
                at = head + (shape.kv.key_scales + 4 * v * shape.lanes) + (loop.iv & 63) * 4
                scale = at.load(("f32", shape.lanes), 4)
            for i in range(rows.size):
                out = scratch.scores + (i * SCORE_ROW + 4 * v * shape.lanes) + (loop.iv - block.start) * 4
                score = sums[i * vectors + v]
                out.store(score if scale is None else score * scale, 4)


def _dot_products(shape: Shape, rows: Rows, keys: Ptr, groups: int) -> list[V]:
    """Query times key for `groups` groups of positions, ordered by row, then by vector of positions."""
    lanes, kv = shape.lanes, shape.kv
    parts = KEY_GROUP // lanes
    zero = const(0.0, ("f32", lanes))
    with for_(0, kv.head_dim, carry=[zero] * (rows.size * groups * parts)) as loop:
        line = keys + loop.iv * (KEY_GROUP * kv.width)
        loaded = [
            kv.load(line + (g * kv.key_group_bytes + part * lanes * kv.width), lanes)
            for g in range(groups)
            for part in range(parts)
        ]
        out = []
        for i, query in enumerate(rows.queries):
            q = splat((query + loop.iv * 4).load("f32", 4), lanes)
            out += [fma(k, q, loop.args[i * len(loaded) + j]) for j, k in enumerate(loaded)]
        loop.next(*out)
    return loop.results


def emit_softmax(shape: Shape, scratch: Scratch, rows: Rows, block: Block, cap: V | None) -> None:
    """Turn scores into weights of the values, and fold the block's maximum and sum into the running ones.

    A row that sees no key of the block is left alone.
    """
    with for_(0, rows.count) as loop:
        row = loop.iv
        scores = scratch.scores + row * SCORE_ROW
        with if_(block.seen_by(rows, row)):
            peak = _mask_and_peak(shape, scores, rows, block, row, cap)
            total = _exponentials(shape, scores, rows, block, peak)
            _fold(shape, scratch.peak + row * 16, peak, total)


def _vectors(shape: Shape, block: Block) -> tuple[V, V, int]:
    """Positions of the block's vectors: whole vectors around [lo, hi)."""
    return block.lo & -KEY_GROUP, block.hi, shape.lanes


def _mask_and_peak(shape: Shape, scores: Ptr, rows: Rows, block: Block, row: V, cap: V | None) -> V:
    """Cap and mask a row's scores in place; their maximum, at least LOWEST. NaN is left for the exponentials."""
    lanes = shape.lanes
    newest = splat(convert(rows.first + row, "i32"), lanes)
    oldest = splat(convert(rows.oldest(row), "i32"), lanes)
    steps = vector_const(range(lanes), "i32")
    masked = const(MASKED, ("f32", lanes))
    with for_(*_vectors(shape, block), carry=[const(LOWEST, ("f32", lanes))]) as loop:
        at = scores + (loop.iv - block.start) * 4
        score = at.load(("f32", lanes), 4)
        if cap is not None:
            score = _soft_cap(score, cap)
        position = splat(convert(loop.iv, "i32"), lanes) + steps
        score = select((position <= newest) & (position >= oldest), score, masked)
        at.store(score, 4)
        loop.next(fmax_fast(score, loop.args[0]))
    return reduce_tree(loop.results[0], fmax_fast)


def _soft_cap(score: V, cap: V) -> V:
    wide = splat(cap, score.lanes)
    return wide * tanh(score / wide)


def _exponentials(shape: Shape, scores: Ptr, rows: Rows, block: Block, peak: V) -> V:
    """Replace a row's scores by exp(score - peak), times the value's scale where there is one; the plain sum."""
    lanes = shape.lanes
    wide = splat(peak, lanes)
    with for_(*_vectors(shape, block), carry=[const(0.0, ("f32", lanes))]) as loop:
        at = scores + (loop.iv - block.start) * 4
        weight = exp_nonpositive(at.load(("f32", lanes), 4) - wide)
        scaled = weight
        if shape.kv.scaled:
            scales = rows.head_of(loop.iv) + shape.kv.value_scales + (loop.iv & 63) * 4
            scaled = weight * scales.load(("f32", lanes), 4)
        at.store(scaled, 4)
        loop.next(loop.args[0] + weight)
    return reduce_tree(loop.results[0], lambda a, b: a + b)


def _fold(shape: Shape, state: Ptr, peak: V, total: V) -> None:
    """Running maximum and sum after the block, and the factors that its and the earlier sums get."""
    old_peak, old_total = state.load("f32", 4), (state + 4).load("f32", 4)
    new_peak = fmax_fast(peak, old_peak)
    old_factor = _exp_scalar(shape, old_peak - new_peak)
    new_factor = _exp_scalar(shape, peak - new_peak)
    state.store(new_peak, 4)
    (state + 4).store(fma(total, new_factor, old_total * old_factor), 4)
    (state + 8).store(old_factor, 4)
    (state + 12).store(new_factor, 4)


def _exp_scalar(shape: Shape, x: V) -> V:
    return extract(exp_nonpositive(splat(x, shape.lanes)), 0)
