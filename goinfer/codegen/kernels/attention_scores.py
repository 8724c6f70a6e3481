"""First half of a KV block: scores of every row against the block's keys, then their exponentials.

A score is one chain of fma over the dimensions in ascending order, whichever rows and positions are computed beside
it. Maximum and sum of a row run over vectors of positions aligned to absolute position, so vectors that are wholly
masked change nothing and a row's numbers do not depend on how far its tile reaches.
"""

from goinfer.bundle_format.kernel_abi import PAGE
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
from goinfer.codegen.kernels.attention_rows import LOWEST, MASKED, SCORE_ROW, Block
from goinfer.codegen.kernels.kv_cache import KEY_GROUP
from goinfer.codegen.vecmath import exp_nonpositive, tanh


def emit_scores(b: Block, size: int) -> None:
    """Write the scores of `size` rows and every key group that [lo, hi) touches.

    A single row takes the four groups of a page at once, so that enough sums are in flight to hide the fma's latency;
    more rows take one group. A group next to the needed ones lies in the same page, so reading it is harmless.
    """
    lanes, kv = b.shape.lanes, b.shape.kv
    groups = PAGE // KEY_GROUP if size == 1 else 1
    span = groups * KEY_GROUP
    vectors = span // lanes
    with for_(b.lo & -span, b.hi, span) as loop:
        head, place = b.rows.head_of(loop.iv), loop.iv & (PAGE - 1)
        sums = _dot_products(b, head + (place >> 4) * kv.key_group_bytes, groups, size)
        for v in range(vectors):
            scale = None
            if kv.scaled:
                scale = (head + (kv.key_scales + 4 * v * lanes) + place * 4).load(("f32", lanes), 4)
            for i in range(size):
                out = b.scratch.scores + (i * SCORE_ROW + 4 * v * lanes) + b.column(loop.iv)
                score = sums[i * vectors + v]
                out.store(score if scale is None else score * scale, 4)


def _dot_products(b: Block, keys: Ptr, groups: int, size: int) -> list[V]:
    """Query times key for some groups of positions, ordered by row, then by vector of positions."""
    lanes, kv = b.shape.lanes, b.shape.kv
    parts = KEY_GROUP // lanes
    zero = const(0.0, ("f32", lanes))
    queries = [b.rows.query(i) for i in range(size)]
    with for_(0, kv.head_dim, carry=[zero] * (size * groups * parts)) as loop:
        line = keys + loop.iv * (KEY_GROUP * kv.width)
        loaded = [
            kv.load(line + (g * kv.key_group_bytes + part * lanes * kv.width), lanes)
            for g in range(groups)
            for part in range(parts)
        ]
        out = []
        for i, query in enumerate(queries):
            q = splat((query + loop.iv * 4).load("f32", 4), lanes)
            out += [fma(k, q, loop.args[i * len(loaded) + j]) for j, k in enumerate(loaded)]
        loop.next(*out)
    return loop.results


def emit_softmax(b: Block, cap: V | None) -> None:
    """Turn scores into weights of the values, and fold the block's maximum and sum into the running ones.

    A row that sees no key of the block is left alone.
    """
    with for_(0, b.rows.count) as loop, if_(b.seen_by(loop.iv)):
        peak = _mask_and_peak(b, loop.iv, cap)
        total = _exponentials(b, loop.iv, peak)
        _fold(b, loop.iv, peak, total)


def _vectors(b: Block) -> tuple[V, V, int]:
    """Bounds and step of a loop over whole vectors of positions around [lo, hi)."""
    return b.lo & -KEY_GROUP, b.hi, b.shape.lanes


def _mask_and_peak(b: Block, row: V, cap: V | None) -> V:
    """Capped and masked scores of a row to `weights`; their maximum, at least LOWEST. NaN is left for later."""
    lanes = b.shape.lanes
    newest = splat(convert(b.rows.first + row, "i32"), lanes)
    oldest = splat(convert(b.rows.oldest(row), "i32"), lanes)
    steps = vector_const(range(lanes), "i32")
    masked = const(MASKED, ("f32", lanes))
    with for_(*_vectors(b), carry=[const(LOWEST, ("f32", lanes))]) as loop:
        at = row * SCORE_ROW + b.column(loop.iv)
        score = (b.scratch.scores + at).load(("f32", lanes), 4)
        if cap is not None:
            score = _soft_cap(score, splat(cap, lanes))
        position = splat(convert(loop.iv, "i32"), lanes) + steps
        score = select((position <= newest) & (position >= oldest), score, masked)
        (b.scratch.weights + at).store(score, 4)
        loop.next(fmax_fast(score, loop.args[0]))
    return reduce_tree(loop.results[0], fmax_fast)


def _soft_cap(score: V, cap: V) -> V:
    return cap * tanh(score / cap)


def _exponentials(b: Block, row: V, peak: V) -> V:
    """Turn a row of `weights` into exp(score - peak), times the value's scale where there is one; the plain sum."""
    lanes, kv = b.shape.lanes, b.shape.kv
    wide = splat(peak, lanes)
    with for_(*_vectors(b), carry=[const(0.0, ("f32", lanes))]) as loop:
        at = b.scratch.weights + row * SCORE_ROW + b.column(loop.iv)
        weight = exp_nonpositive(at.load(("f32", lanes), 4) - wide)
        scaled = weight
        if kv.scaled:
            scales = b.rows.head_of(loop.iv) + kv.value_scales + (loop.iv & (PAGE - 1)) * 4
            scaled = weight * scales.load(("f32", lanes), 4)
        at.store(scaled, 4)
        loop.next(loop.args[0] + weight)
    return reduce_tree(loop.results[0], lambda x, y: x + y)


def _fold(b: Block, row: V, peak: V, total: V) -> None:
    """Running maximum and sum after the block, and the factors that its and the earlier sums get."""
    state = b.scratch.state + row * 16
    old_peak, old_total = state.load("f32", 4), (state + 4).load("f32", 4)
    new_peak = fmax_fast(peak, old_peak)
    old_factor = _exp_scalar(old_peak - new_peak, b.shape.lanes)
    new_factor = _exp_scalar(peak - new_peak, b.shape.lanes)
    state.store(new_peak, 4)
    (state + 4).store(fma(total, new_factor, old_total * old_factor), 4)
    (state + 8).store(old_factor, 4)
    (state + 12).store(new_factor, 4)


def _exp_scalar(x: V, lanes: int) -> V:
    return extract(exp_nonpositive(splat(x, lanes)), 0)
