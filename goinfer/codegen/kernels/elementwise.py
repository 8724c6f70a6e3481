"""Plain arithmetic on rows in place, where no neighbouring kernel took it in: add (x += y) and scale (x *= factor).

Static attributes: domain. Operands: 0 x (f32 rows), 1 y (f32 rows; add). Ints: 0 K, 1 x stride, 2 y stride (bytes).
Floats: 0 factor (scale). Columns from K to the padded width become 0.
"""

from collections.abc import Callable, Sequence

from goinfer.codegen.dsl import V, splat
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.quantise_rows import Group, store_group_of_row
from goinfer.codegen.row_walk import row_source, walk, whole_row


@kernel("add")
def build_add(frame: Frame) -> None:
    """Emit x += y."""
    _in_place(frame, 2, lambda values: [a + b for a, b in zip(*values, strict=True)])


@kernel("scale")
def build_scale(frame: Frame) -> None:
    """Emit x *= factor."""
    factor = splat(frame.float(0), frame.target.lanes)
    _in_place(frame, 1, lambda values: [v * factor for v in values[0]])


def _in_place(frame: Frame, n_sources: int, compute: Callable[[list[Group]], Group]) -> None:
    """Rows of operand 0 become compute(groups of the first n_sources operands)."""
    span = whole_row(frame.int(0))

    def row(index: V) -> None:
        rows = [frame.ptr(i) + index * frame.int(1 + i) for i in range(n_sources)]

        def group(at: V, values: list[Group], carried: list[V]) -> Sequence[V]:
            store_group_of_row(rows[0], at, compute(values))
            return ()

        walk(frame.target, [row_source(r) for r in rows], span, group)

    for_rows_of_tile(frame, frame.attrs["domain"], row)
