"""The greedy token of each row from the best of its panels (matmul_best.py).

Operands: 0 best rows ([panels] of (f32 largest, i32 index)), 1 out i32. Ints: 0 panels, 1 best row stride (bytes).
Domain: greedy. The lowest index wins a tie; a row whose largest logit is no finite number gives -1.
"""

import math

from goinfer.codegen.dsl import V, f32, for_, i32, select
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.kernels.matmul_best import BEST_BYTES


@kernel("best_of")
def build(frame: Frame) -> None:
    """Emit the loop over rows; see the module docstring for operands."""

    def row(index: V) -> None:
        best = frame.ptr(0) + index * frame.int(1)
        with for_(0, frame.int(0), carry=[f32(-math.inf), i32(-1), f32(0.0)]) as loop:
            peak, token, bad = loop.args
            value = (best + loop.iv * BEST_BYTES).load("f32", 4)
            larger = value > peak
            found = (best + loop.iv * BEST_BYTES + 4).load("i32", 4)
            loop.next(
                select(larger, value, peak), select(larger, found, token), select(value.ne(value), value, bad)
            )
        peak, token, bad = loop.results
        usable = bad.eq(bad) & (peak < math.inf)
        (frame.ptr(1) + index * 4).store(select(usable, token, i32(-1)), 4)

    for_rows_of_tile(frame, "greedy", row)
