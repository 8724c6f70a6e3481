"""Walking rows in groups of 32 columns: how the row kernels loop, and what they may read.

A row of k columns lies in memory k rounded up to 32 columns wide, so its last group may be loaded whole; what lies
past column k is not part of the row, may be anything, and is replaced as it is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP
from goinfer.codegen.dsl import (
    Ptr,
    V,
    choose,
    const,
    convert,
    for_,
    i64,
    if_,
    minimum,
    scratch,
    select,
    splat,
    vector_const,
)
from goinfer.codegen.kernel import Frame
from goinfer.codegen.quantise_rows import Group, groups_of, load_group, store_group
from goinfer.codegen.target import Target

Source = Callable[[V], Ptr]
"""Address of a group's 32 values from the group's number."""

Body = Callable[[V, list[Group], list[V]], Sequence[V]]
"""What happens to a group: (number, values of each source, carried values) -> carried values."""


@dataclass(frozen=True)
class Span:
    """Groups [start, stop) of a row of k columns."""

    start: V
    stop: V
    k: V


def whole_row(k: V) -> Span:
    """All groups of a row of k columns."""
    return Span(i64(0), groups_of(k), k)


def row_source(row: Ptr) -> Source:
    """The groups of an f32 row."""
    return lambda group: row + group * (4 * GROUP)


def walk(target: Target, sources: Sequence[Source], span: Span, body: Body, *, carry: Sequence[V] = (),
         fill: float = 0.0) -> list[V]:  # fmt: skip
    """Run body over the groups of a span, in order; columns from k on read as `fill`.

    Returns what is carried after the last group. The replacement is one compare and one select a vector in every
    group: cheaper than a second copy of the body for the last one.
    """
    lanes = target.lanes
    columns = [vector_const(range(i, i + lanes), "i32") for i in range(0, GROUP, lanes)]
    filling = const(fill, ("f32", lanes))
    with for_(span.start, span.stop, carry=carry) as loop:
        left = splat(convert(span.k - loop.iv * GROUP, "i32"), lanes)
        inside = [c < left for c in columns]
        values = [
            [select(m, v, filling) for m, v in zip(inside, load_group(target, source(loop.iv)), strict=True)]
            for source in sources
        ]
        loop.next(*body(loop.iv, values, loop.args))
    return loop.results


def second_half(target: Target, stage: Ptr, row: Ptr, size: V) -> Source:
    """Groups of columns [size, 2 * size) of a row, for a size that is no multiple of 32.

    Its last group would reach past the row's memory, so the row's last 32 columns are copied to `stage` (64 columns
    of stack memory) and read from there, shifted.
    """
    last, half = size // GROUP, row + size * 4
    position = size + last * GROUP
    window = minimum(position, groups_of(size * 2) * GROUP - GROUP)
    store_group(stage, load_group(target, row + window * 4), 16)
    shifted = stage + (position - window) * 4
    return lambda group: choose(group.eq(last), shifted, half + group * (4 * GROUP))


def stage_for_second_half() -> Ptr:
    """Stack memory for `second_half`; call it outside every loop."""
    return scratch(2 * 4 * GROUP)


def for_units(frame: Frame, chunk: V, k: V, body: Callable[[V, Span], None]) -> None:
    """body(row, span) for every tile of a step whose units cut a row of k columns into runs of `chunk` columns."""
    units, per_unit, groups = frame.units, chunk // GROUP, groups_of(k)
    with for_(frame.tile0, frame.tile1) as tiles:
        first = tiles.iv % units * per_unit
        past = first + per_unit
        stop = select(past < groups, past, groups)
        with if_(first < stop):
            body(tiles.iv // units, Span(first, stop, k))
