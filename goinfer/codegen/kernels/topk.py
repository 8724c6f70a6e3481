"""The k largest logits of each row, descending, the lowest id first among equals.

Operands: 0 logits (f32 rows), 1 out ids i32 [rows][k], 2 out values f32 [rows][k]. Ints: 0 vocabulary size, 1 stride
of the logits (bytes), 2 k, from 1 to the vocabulary size. Domain: logits.
A row with a NaN anywhere gives ids -1 and values NaN.

The outputs are kept sorted while the row is read: a group of 32 whose largest value does not beat the k-th is passed
over, so for logits in no particular order the cost is one reading of the row plus about k ln(vocab / k) insertions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP
from goinfer.codegen.dsl import (
    Ptr,
    V,
    const,
    convert,
    f32,
    fmax_fast,
    for_,
    i32,
    i64,
    if_,
    maximum,
    minimum,
    reduce_tree,
    select,
    while_,
)
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.kernels.argmax import any_nan
from goinfer.codegen.quantise_rows import Group
from goinfer.codegen.row_walk import row_source, walk, whole_row


@dataclass(frozen=True)
class _List:
    """The sorted list of one row."""

    ids: Ptr
    values: Ptr
    k: V

    def value(self, i: V) -> V:
        """Value number i."""
        return (self.values + i * 4).load("f32", 4)

    def put(self, i: V, id_: V, value: V) -> None:
        """Write entry number i."""
        (self.ids + i * 4).store(id_, 4)
        (self.values + i * 4).store(value, 4)

    def beaten_by(self, value: V, seen: V) -> V:
        """Whether a value belongs in the list after `seen` values; a list that is not full takes everything."""
        return (seen < self.k) | (value > self.value(self.k - 1))

    def insert(self, id_: V, value: V) -> None:
        """Shift smaller entries down from the end (the last falls out of a full list) and put the value in."""

        def shift(i: V) -> Sequence[V]:
            before = i - 1
            self.put(i, (self.ids + before * 4).load("i32", 4), self.value(before))
            return [before]

        end = minimum(id_, self.k - 1)
        (slot,) = while_([end], lambda i: (i > 0) & (self.value(maximum(i - 1, i64(0))) < value), shift)
        self.put(slot, convert(id_, "i32"), value)


@kernel("topk")
def build(frame: Frame) -> None:
    """Emit the loop over rows; see the module docstring for operands."""
    vocab, k = frame.int(0), frame.int(2)

    def row(index: V) -> None:
        x = frame.ptr(0) + index * frame.int(1)
        found = _List(frame.ptr(1) + index * k * 4, frame.ptr(2) + index * k * 4, k)

        def group(at: V, values: list[Group], carried: list[V]) -> Sequence[V]:
            bad, peak = carried[0], values[0][0]
            for v in values[0]:
                bad, peak = select(v.ne(v), v, bad), fmax_fast(peak, v)
            first = at * GROUP
            with if_(found.beaten_by(reduce_tree(peak, fmax_fast), first)):
                _insert_group(found, x, first, minimum(first + GROUP, vocab))
            return [bad]

        carry = [const(0.0, ("f32", frame.target.lanes))]
        (bad,) = walk(frame.target, [row_source(x)], whole_row(vocab), group, carry=carry, fill=-math.inf)
        with if_(any_nan(bad)), for_(0, k) as loop:
            found.put(loop.iv, i32(-1), f32(math.nan))

    for_rows_of_tile(frame, "logits", row)


def _insert_group(found: _List, x: Ptr, first: V, stop: V) -> None:
    with for_(first, stop) as loop:
        value = (x + loop.iv * 4).load("f32", 4)
        with if_(found.beaten_by(value, loop.iv)):
            found.insert(loop.iv, value)
