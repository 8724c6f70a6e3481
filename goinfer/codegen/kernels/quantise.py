"""f32 rows to int8 rows, for a matmul whose input no kernel could quantise on the way.

Static attributes: domain. Operands: 0 f32 rows, 1 q8 rows. Ints: 0 K, 1 x stride, 2 out stride (bytes).
Columns from K to the padded width get codes 0, whatever the f32 row holds there.
"""

from collections.abc import Sequence

from goinfer.codegen.dsl import V
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.quantise_rows import Group, row_sink
from goinfer.codegen.row_walk import row_source, walk, whole_row


@kernel("quantise")
def build(frame: Frame) -> None:
    """Emit the loop over rows; see the module docstring for attributes and operands."""
    k = frame.int(0)

    def row(index: V) -> None:
        sink = row_sink("q8", frame.ptr(1) + index * frame.int(2))

        def group(at: V, values: list[Group], carried: list[V]) -> Sequence[V]:
            sink(at, values[0])
            return ()

        walk(frame.target, [row_source(frame.ptr(0) + index * frame.int(1))], whole_row(k), group)

    for_rows_of_tile(frame, frame.attrs["domain"], row)
