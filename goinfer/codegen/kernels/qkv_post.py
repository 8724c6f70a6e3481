"""After the q|k|v product: head norms and rotary positions, queries to their buffer, keys and values to the cache.

Static attributes: head_dim, n_heads, n_kv_heads, kv (f32, f16, int8), rope, q_norm, k_norm.
Operands: 0 q|k|v rows (f32), 1 query rows (f32), 2 rotary table f32 [positions][2][head_dim/2] (cosines, then sines,
of a position), 3 page table u64 [slots][max_pages], 4 positions i32, 5 slots i32, 6 and 7 norm weights of queries and
keys. Ints: 0 q|k|v stride, 1 query stride (bytes), 2 byte offset of the layer inside a page, 3 max_pages.
Floats: 0 eps of the norms, 1 factor of the queries (applied last).

A row writes only its own position of its own slot, so rows need no order among themselves. Rotation is two products
and a sum, each rounded, which is what the reference implementations compute.
"""

import math
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.codegen.dsl import (
    Ptr,
    V,
    abs_,
    const,
    convert,
    f32,
    fma,
    for_,
    maximum,
    reduce_tree,
    round_even,
    scratch,
    select,
    splat,
    sqrt,
)
from goinfer.codegen.errors import CompileError
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.kernels.kv_cache import KEY_GROUP, KvLayout, kv_layout, page_of

_COPIES = 16
"""Numbers of a key that are copied in one turn of a loop."""

SMALLEST_PEAK = 1e-30
"""An int8 key or value whose largest magnitude is below this is stored as zero (127 / peak would overflow)."""


@dataclass(frozen=True)
class _Problem:
    """Static shape, addresses and factors of one call."""

    frame: Frame
    kv: KvLayout
    width: int
    eps: V
    key: Ptr
    """Stack memory for one finished key."""
    stored: Ptr
    """Stack memory for the same key in the cache's precision."""

    @property
    def head_dim(self) -> int:
        return self.kv.head_dim


@kernel("qkv_post")
def build(frame: Frame) -> None:
    """Emit the loop over rows; see the module docstring for attributes and operands."""
    head_dim, lanes = frame.attrs["head_dim"], frame.target.lanes
    if frame.attrs["rope"] and head_dim % 2:
        raise CompileError(f"head_dim {head_dim} is odd, so it has no rotary halves; check the model's configuration")
    kv = kv_layout(head_dim, frame.attrs["kv"])
    width = math.gcd(head_dim // 2 if frame.attrs["rope"] else head_dim, lanes)
    problem = _Problem(frame, kv, width, frame.float(0), scratch(4 * head_dim), scratch(4 * head_dim))
    for_rows_of_tile(frame, "rows", lambda row: _row(problem, row))


def _row(p: _Problem, row: V) -> None:
    """Queries, keys and values of one row."""
    frame, head_bytes = p.frame, 4 * p.head_dim
    n_heads, n_kv_heads = frame.attrs["n_heads"], frame.attrs["n_kv_heads"]
    x, q_out = frame.ptr(0) + row * frame.int(0), frame.ptr(1) + row * frame.int(1)
    position = convert((frame.ptr(4) + row * 4).load("i32", 4), "i64")
    slot = convert((frame.ptr(5) + row * 4).load("i32", 4), "i64")
    page = page_of(frame.ptr(3) + slot * frame.int(3) * 8, position) + frame.int(2)
    angles = frame.ptr(2) + position * head_bytes if frame.attrs["rope"] else None
    factor = splat(frame.float(1), p.width)
    q_norm = frame.ptr(6) if frame.attrs["q_norm"] else None
    k_norm = frame.ptr(7) if frame.attrs["k_norm"] else None
    with for_(0, n_heads) as loop:
        at = loop.iv * head_bytes
        _head(p, x + at, q_out + at, angles=angles, weight=q_norm, factor=factor)
    with for_(0, n_kv_heads) as loop:
        source = x + (loop.iv + n_heads) * head_bytes
        _head(p, source, p.key, angles=angles, weight=k_norm)
        _store_key(p, page + loop.iv * p.kv.head_bytes, position & (PAGE - 1))
    with for_(0, n_kv_heads) as loop:
        source = x + (loop.iv + (n_heads + n_kv_heads)) * head_bytes
        _store_value(p, source, page + (loop.iv * p.kv.head_bytes + p.kv.values), position & (PAGE - 1))


def _head(
    p: _Problem, x: Ptr, out: Ptr, *, angles: Ptr | None, weight: Ptr | None, factor: V | None = None
) -> None:
    """Norm, rotation and factor of one head, each where it applies; `out` may not overlap `x`."""
    spec, half = ("f32", p.width), p.head_dim // 2
    scale = None if weight is None else splat(_rms_factor(p, x), p.width)

    def normed(at: V | int) -> V:
        value = (x + at).load(spec, 4)
        return value if scale is None or weight is None else value * scale * (weight + at).load(spec, 4)

    def store(at: V, value: V) -> None:
        (out + at).store(value if factor is None else value * factor, 4)

    if angles is None:
        with for_(0, 4 * p.head_dim, 4 * p.width) as loop:
            store(loop.iv, normed(loop.iv))
        return
    with for_(0, 4 * half, 4 * p.width) as loop:
        low, high = loop.iv, loop.iv + 4 * half
        a, b = normed(low), normed(high)
        cos, sin = (angles + low).load(spec, 4), (angles + high).load(spec, 4)
        store(low, a * cos - b * sin)
        store(high, b * cos + a * sin)


def _rms_factor(p: _Problem, x: Ptr) -> V:
    """1 / sqrt(mean(x^2) + eps) over a head."""
    with for_(0, 4 * p.head_dim, 4 * p.width, carry=[const(0.0, ("f32", p.width))]) as loop:
        value = (x + loop.iv).load(("f32", p.width), 4)
        loop.next(fma(value, value, loop.args[0]))
    total = reduce_tree(loop.results[0], lambda a, b: a + b)
    return 1.0 / sqrt(total / float(p.head_dim) + p.eps)


def _store_key(p: _Problem, head: Ptr, place: V) -> None:
    """Scatter the finished key to its lane of its group of 16 positions: converted as vectors, copied one by one."""
    kv = p.kv
    at = head + (place >> 4) * kv.key_group_bytes + (place & (KEY_GROUP - 1)) * kv.width
    inverse = None
    if kv.scaled:
        scale, inverse = _int8_scale(p, p.key)
        (head + kv.key_scales + place * 4).store(scale, 4)
    with for_(0, p.head_dim, p.width) as loop:
        value = (p.key + loop.iv * 4).load(("f32", p.width), 4)
        (p.stored + loop.iv * kv.width).store(_stored(kv, value, inverse), kv.width)
    together = math.gcd(p.head_dim, _COPIES)
    integer = f"i{8 * kv.width}"
    with for_(0, p.head_dim, together) as loop:
        for i in range(together):
            one = (p.stored + (loop.iv + i) * kv.width).load(integer, kv.width)
            (at + (loop.iv + i) * (KEY_GROUP * kv.width)).store(one, kv.width)


def _store_value(p: _Problem, x: Ptr, values: Ptr, place: V) -> None:
    """Copy a value to its row, padding it with zeros."""
    kv = p.kv
    row = values + place * kv.value_row_bytes
    inverse = None
    if kv.scaled:
        scale, inverse = _int8_scale(p, x)
        (values + (kv.value_scales - kv.values) + place * 4).store(scale, 4)
    with for_(0, p.head_dim, p.width) as loop:
        value = (x + loop.iv * 4).load(("f32", p.width), 4)
        (row + loop.iv * kv.width).store(_stored(kv, value, inverse), kv.width)
    if kv.value_dims > p.head_dim:
        padding = const(0, (kv.element, kv.value_dims - p.head_dim))
        (row + p.head_dim * kv.width).store(padding, kv.width)


def _int8_scale(p: _Problem, x: Ptr) -> tuple[V, V]:
    """(scale, factor to codes) of a head: largest magnitude / 127. NaN and infinity end up in the scale."""
    with for_(0, 4 * p.head_dim, 4 * p.width, carry=[const(0.0, ("f32", p.width))]) as loop:
        loop.next(maximum(abs_((x + loop.iv).load(("f32", p.width), 4)), loop.args[0]))
    peak = reduce_tree(loop.results[0], maximum)
    zero, none = f32(0.0), peak < SMALLEST_PEAK
    return select(none, zero, peak / 127.0), select(none, zero, 127.0 / peak)


def _stored(kv: KvLayout, value: V, inverse: V | None) -> V:
    """A number as the cache keeps it; a code that is not a number becomes 0 (its scale is NaN then)."""
    if inverse is None:
        return value if kv.dtype == "f32" else convert(value, "f16")
    code = round_even(value * (splat(inverse, value.lanes) if value.lanes else inverse))
    code = select(code.eq(code), code, const(0.0, code.spec))
    return convert(convert(code, "i32"), "i8")
