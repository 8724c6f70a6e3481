"""Groups of 32 values of a row: loading them, and the two forms in which they are stored.

A group is held as 32/lanes vectors. Quantising one gives int8 codes, one f32 scale and the int32 sum of the codes,
the same bits as compiler/quant/formats.py quantise_activations: scale = absmax / 127, code = x * (127 / absmax)
rounded to even; a group whose factor overflows (zeros, or an absmax under 3.8e-37) has scale 0 and codes 0. A NaN or
an infinity in a group gives codes 0 and that NaN or infinity as scale, so every product of the row is NaN.
"""

from collections.abc import Callable, Sequence

from goinfer.bundle_format.kernel_abi import GROUP, Q8_GROUP_BYTES, Q8_OFFSET, Q8_SCALE, Q8_WEIGHTED
from goinfer.codegen.dsl import (
    Ptr,
    V,
    bitcast,
    convert,
    f32,
    i32,
    maximum,
    reduce_tree,
    select,
    shuffle,
    splat,
)
from goinfer.codegen.errors import CompileError
from goinfer.codegen.target import Target

_MAGIC, _MAGIC_BITS = 12582912.0, 0x4B400000
"""1.5 * 2^23 and its bits: adding it rounds to an integer, ties to even, kept in the low bits."""

Group = list[V]
"""32 consecutive f32 values of a row as vectors."""


def groups_of(k: V) -> V:
    """Groups that k columns take, the last one perhaps partly filled."""
    return (k + (GROUP - 1)) // GROUP


def load_group(target: Target, at: Ptr, align: int = 4) -> Group:
    """The 32 values at an address."""
    step = 4 * target.lanes
    return [(at + i).load(("f32", target.lanes), align) for i in range(0, 4 * GROUP, step)]


def store_group(at: Ptr, values: Group, align: int = 4) -> None:
    """Store 32 values as f32."""
    for i, v in enumerate(values):
        (at + 4 * v.lanes * i).store(v, align)


def store_group_of_row(row: Ptr, group: V, values: Group) -> None:
    """Store group number `group` of an f32 row."""
    store_group(row + group * (4 * GROUP), values)


Sink = Callable[[V, Group], None]
"""Stores one group: (index of the group in its row, its values)."""


def row_sink(out: str, row: Ptr) -> Sink:
    """Where finished groups of a row go: "f32" rows, or "q8" rows."""
    if out == "f32":
        return lambda group, values: store_group_of_row(row, group, values)
    if out != "q8":
        raise CompileError(f"row format {out!r} is unknown; known: f32, q8")

    def store(group: V, values: Group) -> None:
        codes, scale, total = quantise_group(values)
        at = row + group * Q8_GROUP_BYTES
        at.store(codes, 16)
        (at + Q8_SCALE).store(scale, 4)
        (at + Q8_OFFSET).store(total * -8, 4)
        (at + Q8_WEIGHTED).store(convert(total, "f32") * scale, 4)

    return store


def quantise_group(values: Group) -> tuple[V, V, V]:
    """(codes i8 [32], scale f32, sum of codes i32) of a group."""
    word = ("i32", values[0].lanes)
    peak = absmax(values)
    factor = 127.0 / peak
    infinite = factor.eq(float("inf"))
    usable = (factor < float("inf")) & (peak < float("inf"))
    scale = select(infinite, f32(0.0), peak / 127.0)
    factors = splat(select(usable, factor, f32(0.0)), values[0].lanes)
    mask = splat(select(usable, i32(-1), i32(0)), values[0].lanes)
    codes = [(bitcast(v * factors + _MAGIC, word) - _MAGIC_BITS) & mask for v in values]
    total = codes[0]
    for c in codes[1:]:
        total = total + c
    return convert(_joined(codes), "i8"), scale, reduce_tree(total, lambda a, b: a + b)


def absmax(values: Sequence[V]) -> V:
    """Largest magnitude, as f32. Compared as integers, where a NaN is above every number: it is never lost."""
    bits = [bitcast(v, ("i32", v.lanes)) & 0x7FFFFFFF for v in values]
    while len(bits) > 1:
        bits = [maximum(a, b) for a, b in zip(bits[::2], bits[1::2], strict=True)]
    return bitcast(reduce_tree(bits[0], maximum), "f32")


def _joined(parts: list[V]) -> V:
    """Vectors side by side in one; their number is a power of two."""
    while len(parts) > 1:
        parts = [shuffle(a, b, range(2 * a.lanes)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
