"""Soft cap of rows in place: x = cap * tanh(x / cap).

Static attributes: domain. Operands: 0 f32 rows. Ints: 0 N, 1 stride (bytes), 2 unused, 3 columns that a unit covers
(a multiple of 32). Floats: 0 cap. Tile t is unit t % units of row t // units. Columns from N to the padded width
become 0.
"""

from collections.abc import Sequence

from goinfer.codegen import vecmath
from goinfer.codegen.dsl import V, splat
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.quantise_rows import Group, store_group_of_row
from goinfer.codegen.row_walk import Span, for_units, row_source, walk


@kernel("softcap")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    cap = splat(frame.float(0), frame.target.lanes)

    def unit(row: V, span: Span) -> None:
        x = frame.ptr(0) + row * frame.int(1)

        def group(at: V, values: list[Group], carried: list[V]) -> Sequence[V]:
            store_group_of_row(x, at, [vecmath.tanh(v / cap) * cap for v in values[0]])
            return ()

        walk(frame.target, [row_source(x)], span, group)

    for_units(frame, frame.int(3), frame.int(0), unit)
