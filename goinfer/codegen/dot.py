"""Dot products of int8: 32 values of k for `lanes` output rows, exact in int32 on every target.

Weights come as eight vectors of 4*lanes bytes (four consecutive k of each row), activations as 32 bytes that every
row shares. int4 codes are 0..15 with zero at 8, so 8 * sum(activations) is taken off; int8 codes are -127..127.
"""

from goinfer.codegen.dsl import Ptr, V, bitcast, const, intrinsic, splat
from goinfer.codegen.target import Target

NIBBLES = ("int4", "int4min")
"""Formats of 4-bit codes. A minimum (int4min) is the caller's affair."""


def dot_group(target: Target, fmt: str, codes: list[V], x: Ptr, x_sum: V) -> V:
    """Sum over the group as i32 [lanes]. `x_sum` is the i32 sum of the 32 activations."""
    method = {"maddubs": _maddubs, "vnni": _vnni, "vnni-emulated": _vnni, "sdot": _sdot}[target.dot]
    return method(target, fmt, codes, x, x_sum)


def _activations(target: Target, x: Ptr, chunk: int) -> V:
    """Four activations repeated in every lane, as bytes."""
    word = (x + 4 * chunk).load("i32", 4)
    return bitcast(splat(word, target.lanes), ("i8", 4 * target.lanes))


def _zero_point(target: Target, x_sum: V) -> V:
    """What to take off: 8 * sum for the unsigned codes of nibbles."""
    return splat(x_sum << 3, target.lanes)


def _maddubs(target: Target, fmt: str, codes: list[V], x: Ptr, x_sum: V) -> V:
    """AVX2. Nibbles: |sum| <= 8 * 2 * 15 * 127 = 30480 fits int16, so a group needs one widening at its end.

    int8: sign(x, w) * |w| keeps vpmaddubsw from saturating (127 * 127 * 2 = 32258), widened at every chunk.
    """
    lanes = target.lanes
    ones = const(1, ("i16", 2 * lanes))
    byte, short, word = ("i8", 4 * lanes), ("i16", 2 * lanes), ("i32", lanes)
    total: V | None = None
    for chunk, w in enumerate(codes):
        a = _activations(target, x, chunk)
        if fmt in NIBBLES:
            term = intrinsic("llvm.x86.avx2.pmadd.ub.sw", short, w, a)
        else:
            magnitude = intrinsic("llvm.x86.avx2.psign.b", byte, w, w)
            signed = intrinsic("llvm.x86.avx2.psign.b", byte, a, w)
            pairs = intrinsic("llvm.x86.avx2.pmadd.ub.sw", short, magnitude, signed)
            term = intrinsic("llvm.x86.avx2.pmadd.wd", word, pairs, ones)
        total = term if total is None else total + term
    assert total is not None
    if fmt in NIBBLES:
        return intrinsic("llvm.x86.avx2.pmadd.wd", word, total, ones) - _zero_point(target, x_sum)
    return total


def _vnni(target: Target, fmt: str, codes: list[V], x: Ptr, x_sum: V) -> V:
    """vpdpbusd: unsigned weights times signed activations. int8 weights are shifted to unsigned by xor 0x80."""
    word = ("i32", target.lanes)
    shift = 3 if fmt in NIBBLES else 7
    total = const(0, word) - splat(x_sum << shift, target.lanes)
    step = _vpdpbusd if target.dot == "vnni" else _vpdpbusd_written_out
    for chunk, w in enumerate(codes):
        unsigned = w if fmt in NIBBLES else w ^ -128
        total = step(total, unsigned, _activations(target, x, chunk))
    return total


def _vpdpbusd(total: V, w: V, a: V) -> V:
    return intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * total.lanes}", total.spec, total, w, a)


def _vpdpbusd_written_out(total: V, w: V, a: V) -> V:
    """What the instruction computes, byte by byte: lets a machine without it test the code around it."""
    weights, acts = bitcast(w, total.spec), bitcast(a, total.spec)
    for byte in range(4):
        total = total + ((weights >> (8 * byte)) & 255) * (acts << (24 - 8 * byte)).ashr(24)
    return total


def _sdot(target: Target, fmt: str, codes: list[V], x: Ptr, x_sum: V) -> V:
    """NEON sdot: signed times signed, every format directly."""
    word = ("i32", 4)
    total = const(0, word)
    if fmt in NIBBLES:
        total = total - _zero_point(target, x_sum)
    for chunk, w in enumerate(codes):
        total = intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", word, total, w, _activations(target, x, chunk))
    return total
