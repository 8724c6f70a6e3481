"""Keeps the wanted rows of a buffer: row i becomes what row wanted[i] was, in place.

Operands: 0 rows, 1 wanted i32, ascending. Ints: 0 bytes of a row, a multiple of 64. Domain: fixed, one tile.
wanted[i] is at least i, so going upwards no row is read after it was overwritten; where all rows are wanted nothing is
copied.
"""

from goinfer.codegen.dsl import convert, for_, if_
from goinfer.codegen.kernel import Frame, kernel


@kernel("keep_rows")
def build(frame: Frame) -> None:
    """Emit the copy; see the module docstring for operands."""
    lanes, size = frame.target.lanes, frame.int(0)
    with for_(frame.tile0, frame.tile1), for_(0, frame.count("wanted")) as row:
        wanted = convert((frame.ptr(1) + row.iv * 4).load("i32", 4), "i64")
        source, out = frame.ptr(0) + wanted * size, frame.ptr(0) + row.iv * size
        with if_(wanted.ne(row.iv)), for_(0, size, 4 * lanes) as loop:
            (out + loop.iv).store((source + loop.iv).load(("i32", lanes), 4), 4)
