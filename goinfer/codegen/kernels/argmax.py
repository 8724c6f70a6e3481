"""The greedy token of each row of logits.

Operands: 0 logits (f32 rows), 1 out i32. Ints: 0 vocabulary size (padded columns are not looked at), 1 stride (bytes).
Domain: logits. The lowest index wins a tie; a row with a NaN anywhere gives -1.
"""

import math
from collections.abc import Sequence

from goinfer.bundle_format.kernel_abi import GROUP
from goinfer.codegen.dsl import (
    V,
    const,
    convert,
    fmax_fast,
    i32,
    minimum,
    reduce_tree,
    select,
    splat,
    vector_const,
)
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.quantise_rows import Group
from goinfer.codegen.row_walk import row_source, walk, whole_row

_NO_INDEX = 0x7FFFFFFF


@kernel("argmax")
def build(frame: Frame) -> None:
    """Emit the loop over rows; see the module docstring for operands."""
    lanes = frame.target.lanes
    parts = GROUP // lanes
    span = whole_row(frame.int(0))

    def row(index: V) -> None:
        first = [vector_const(range(lanes * i, lanes * (i + 1)), "i32") for i in range(parts)]
        lowest = const(-math.inf, ("f32", lanes))

        def group(at: V, values: list[Group], carried: list[V]) -> Sequence[V]:
            best, where, bad = carried[:parts], carried[parts:-1], carried[-1]
            base = splat(convert(at * GROUP, "i32"), lanes)
            for i, v in enumerate(values[0]):
                larger = v > best[i]
                best[i], where[i] = select(larger, v, best[i]), select(larger, first[i] + base, where[i])
                bad = select(v.ne(v), v, bad)
            return [*best, *where, bad]

        start = [*[lowest] * parts, *first, const(0.0, ("f32", lanes))]
        x = row_source(frame.ptr(0) + index * frame.int(1))
        out = walk(frame.target, [x], span, group, carry=start, fill=-math.inf)
        token, _ = lowest_of_largest(out[:parts], out[parts:-1])
        (frame.ptr(1) + index * 4).store(select(any_nan(out[-1]), i32(-1), token), 4)

    for_rows_of_tile(frame, "logits", row)


def lowest_of_largest(best: list[V], where: list[V]) -> tuple[V, V]:
    """The smallest index among the lanes that hold the largest value, and that value."""
    peak = best[0]
    for b in best[1:]:
        peak = fmax_fast(peak, b)
    largest = reduce_tree(peak, fmax_fast)
    top = splat(largest, peak.lanes)
    candidates = [select(b.eq(top), w, const(_NO_INDEX, w.spec)) for b, w in zip(best, where, strict=True)]
    lowest = candidates[0]
    for c in candidates[1:]:
        lowest = minimum(lowest, c)
    return reduce_tree(lowest, minimum), largest


def any_nan(bad: V) -> V:
    """Whether a lane holds a NaN, as i1."""
    flags = select(bad.ne(bad), const(1, ("i32", bad.lanes)), const(0, ("i32", bad.lanes)))
    return reduce_tree(flags, lambda a, b: a | b).ne(0)
