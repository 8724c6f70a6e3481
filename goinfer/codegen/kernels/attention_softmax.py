"""Second part of a KV block: exponentials of the scores, their maximum and their sum.

Both run over vectors of positions aligned to absolute position, so vectors that are wholly masked change nothing and a
line's numbers do not depend on how far its pass reaches.
"""

from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.codegen.dsl import (
    Ptr,
    V,
    const,
    convert,
    fmax_fast,
    for_,
    if_else,
    reduce_tree,
    select,
    splat,
    vector_const,
)
from goinfer.codegen.kernels.attention_rows import LOWEST, MASKED, SCORE_ROW, Block
from goinfer.codegen.kernels.kv_cache import KEY_GROUP
from goinfer.codegen.vecmath import exp_nonpositive, tanh

_TOGETHER = 4
"""Lines that are worked on together, so that their chains hide each other's latency."""


def emit_softmax(b: Block, cap: V | None) -> None:
    """Turn scores into weights of the values, in place; the block's maximum and sum of each line go to its partials.

    Only a block that some row sees in part needs masks. What a line gets that sees no key of the block means nothing.
    """
    whole = (b.hi <= b.rows.first + 1) & (b.lo >= b.rows.oldest(b.rows.count - 1))
    whole = whole & ((b.lo | b.hi) & (KEY_GROUP - 1)).eq(0)
    if_else(whole, lambda: _all_lines(b, cap, masked=False), lambda: _all_lines(b, cap, masked=True))


def _all_lines(b: Block, cap: V | None, *, masked: bool) -> None:
    full = b.rows.lines & -_TOGETHER
    with for_(0, full, _TOGETHER) as loop:
        _some_lines(b, cap, [loop.iv + i for i in range(_TOGETHER)], masked)
    with for_(full, b.rows.lines) as loop:
        _some_lines(b, cap, [loop.iv], masked)


def _some_lines(b: Block, cap: V | None, numbers: list[V], masked: bool) -> None:
    lines = [_Line(b, n, masked) for n in numbers]
    for line, peak in zip(lines, _peaks(b, lines, cap), strict=True):
        line.peak = peak
        (b.out.peaks + line.number * 4).store(peak, 4)
    for line, total in zip(lines, _exponentials(b, lines), strict=True):
        (b.out.sums + line.number * 4).store(total, 4)


class _Line:
    """One line's scores, and which of them it sees."""

    peak: V

    def __init__(self, b: Block, number: V, masked: bool):
        self.number = number
        self.scores = b.scratch.scores + number * SCORE_ROW
        self._b = b
        self._bounds = [self._wide(p) for p in (b.scratch.newest, b.scratch.oldest)] if masked else []

    def _wide(self, column: Ptr) -> V:
        return splat((column + self.number * 4).load("i32", 4), self._b.shape.lanes)

    def at(self, position: V) -> Ptr:
        """Where the scores of a vector of positions lie."""
        return self.scores + self._b.column(position)

    def masked(self, score: V, position: V) -> V:
        """Scores of the positions from `position` on, MASKED where the line does not see them."""
        if not self._bounds:
            return score
        newest, oldest = self._bounds
        here = splat(convert(position, "i32"), score.lanes) + vector_const(range(score.lanes), "i32")
        return select((here <= newest) & (here >= oldest), score, const(MASKED, score.spec))


def _vectors(b: Block) -> tuple[V, V, int]:
    """Bounds and step of a loop over whole vectors of positions around [lo, hi)."""
    return b.lo & -KEY_GROUP, b.hi, b.shape.lanes


def _peaks(b: Block, lines: list[_Line], cap: V | None) -> list[V]:
    """Maximum of each line's scores, at least LOWEST; NaN is left for later. Capped scores are written back."""
    spec = ("f32", b.shape.lanes)
    with for_(*_vectors(b), carry=[const(LOWEST, spec)] * len(lines)) as loop:
        peaks = []
        for line, peak in zip(lines, loop.args, strict=True):
            score = line.at(loop.iv).load(spec, 4)
            if cap is not None:
                score = splat(cap, score.lanes) * tanh(score / splat(cap, score.lanes))
                line.at(loop.iv).store(score, 4)
            peaks.append(fmax_fast(line.masked(score, loop.iv), peak))
        loop.next(*peaks)
    return [reduce_tree(peak, fmax_fast) for peak in loop.results]


def _exponentials(b: Block, lines: list[_Line]) -> list[V]:
    """Turn scores into exp(score - peak), times the value's scale where there is one; the plain sum of each line."""
    spec, kv = ("f32", b.shape.lanes), b.shape.kv
    peaks = [splat(line.peak, b.shape.lanes) for line in lines]
    with for_(*_vectors(b), carry=[const(0.0, spec)] * len(lines)) as loop:
        scale, sums = None, []
        if kv.scaled:
            scales = b.rows.head_of(loop.iv) + kv.value_scales + (loop.iv & (PAGE - 1)) * 4
            scale = scales.load(spec, 4)
        for line, peak, total in zip(lines, peaks, loop.args, strict=True):
            score = line.masked(line.at(loop.iv).load(spec, 4), loop.iv)
            weight = exp_nonpositive(score - peak)
            line.at(loop.iv).store(weight if scale is None else weight * scale, 4)
            sums.append(total + weight)
        loop.next(*sums)
    return [reduce_tree(total, lambda x, y: x + y) for total in loop.results]
