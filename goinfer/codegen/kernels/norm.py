"""RMS norm of rows, with the residual addition before it and the quantisation after it.

Static attributes: norm ("rms", or "none": the row as it is), add ("none"; "plain": x += delta; "normed":
x += rms(delta) * post weight), out ("f32" or "q8"), domain.
Operands: 0 x (f32 rows, updated in place where add is not none), 1 weight, 2 out rows, 3 delta (f32 rows), 4 post
weight.
Ints: 0 K, 1 x stride, 2 out stride, 3 delta stride (bytes). Floats: 0 eps, 1 eps of the post norm.

A row with a NaN has NaN in its padding too.
The sum of squares has one chain for each lane of the group's vectors, then a tree: the same for every row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP
from goinfer.codegen.dsl import Ptr, V, const, convert, fma, reduce_tree, splat, sqrt
from goinfer.codegen.errors import CompileError
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.quantise_rows import Group, load_group, row_sink, store_group_of_row
from goinfer.codegen.row_walk import Body, row_source, walk, whole_row
from goinfer.codegen.target import Target

_ADDS = ("none", "plain", "normed")


@dataclass(frozen=True)
class _Row:
    """A row's width, and how to walk it."""

    target: Target
    k: V

    def each(self, sources: list[Ptr], body: Body, carry: Sequence[V] = ()) -> list[V]:
        """Run body over all groups."""
        return walk(self.target, [row_source(s) for s in sources], whole_row(self.k), body, carry=carry)

    @property
    def no_squares(self) -> list[V]:
        """The chains of a sum of squares at its start."""
        lanes = self.target.lanes
        return [const(0.0, ("f32", lanes))] * (GROUP // lanes)

    def factor(self, squares: list[V], eps: V) -> V:
        """1 / sqrt(mean + eps) from the chains of squares, in every lane."""
        chains = list(squares)
        while len(chains) > 1:
            chains = [a + b for a, b in zip(chains[::2], chains[1::2], strict=True)]
        mean = reduce_tree(chains[0], lambda a, b: a + b) / convert(self.k, "f32")
        return splat(1.0 / sqrt(mean + eps), self.target.lanes)


@kernel("norm")
def build(frame: Frame) -> None:
    """Emit the loop over rows; see the module docstring for attributes and operands."""
    attrs = frame.attrs
    if attrs["add"] not in _ADDS or attrs["norm"] not in ("rms", "none"):
        raise CompileError(f"norm: add={attrs['add']!r} norm={attrs['norm']!r} is unknown; see kernels/norm.py")
    row = _Row(frame.target, frame.int(0))
    for_rows_of_tile(frame, attrs["domain"], lambda index: _one_row(frame, row, index))


def _one_row(frame: Frame, row: _Row, index: V) -> None:
    attrs = frame.attrs
    x = frame.ptr(0) + index * frame.int(1)
    sink = row_sink(attrs["out"], frame.ptr(2) + index * frame.int(2))
    if attrs["add"] == "none":
        squares = row.each([x], _sum_squares, row.no_squares) if attrs["norm"] == "rms" else []
    else:
        squares = _add(frame, row, x, frame.ptr(3) + index * frame.int(3))
    factor = row.factor(squares, frame.float(0)) if attrs["norm"] == "rms" else None
    weight = frame.ptr(1)

    def finish(group: V, values: list[Group], carried: list[V]) -> Sequence[V]:
        sink(group, values[0] if factor is None else _normed(frame, values[0], factor, weight, group))
        return ()

    row.each([x], finish)


def _normed(frame: Frame, values: Group, factor: V, weight: Ptr, group: V) -> Group:
    """value * factor * weight, in that order."""
    weights = load_group(frame.target, weight + group * (4 * GROUP), 16)
    return [v * factor * w for v, w in zip(values, weights, strict=True)]


def _sum_squares(group: V, values: list[Group], chains: list[V]) -> Sequence[V]:
    return [fma(v, v, c) for v, c in zip(values[0], chains, strict=True)]


def _add(frame: Frame, row: _Row, x: Ptr, delta: Ptr) -> list[V]:
    """x += delta (normed where add says so); returns the chains of squares of the sum."""
    normed = frame.attrs["add"] == "normed"
    factor = row.factor(row.each([delta], _sum_squares, row.no_squares), frame.float(1)) if normed else None

    def group_sum(group: V, values: list[Group], chains: list[V]) -> Sequence[V]:
        old, change = values
        if factor is not None:
            change = _normed(frame, change, factor, frame.ptr(4), group)
        new = [a + b for a, b in zip(old, change, strict=True)]
        store_group_of_row(x, group, new)
        return _sum_squares(group, [new], chains)

    return row.each([x, delta], group_sum, row.no_squares)
