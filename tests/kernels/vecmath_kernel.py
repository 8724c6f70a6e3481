"""A kernel kind that only tests have: applies one function of vecmath to an array, with `lanes` values at a time."""

from goinfer.codegen import vecmath
from goinfer.codegen.dsl import for_
from goinfer.codegen.kernel import Frame, kernel


@kernel("test_vecmath")
def build(frame: Frame) -> None:
    """p1[i] = fn(p0[i]) for i below int 0, a multiple of lanes; attrs: fn, lanes (0 for scalars)."""
    function, lanes = getattr(vecmath, frame.attrs["fn"]), frame.attrs["lanes"]
    with for_(0, frame.int(0) * 4, 4 * (lanes or 1)) as loop:
        x = (frame.ptr(0) + loop.iv).load(("f32", lanes) if lanes else "f32", 4)
        (frame.ptr(1) + loop.iv).store(function(x), 4)
