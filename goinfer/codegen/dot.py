"""Dot products of int8: 32 values of k for `lanes` output rows, exact in int32 on every target.

Weights come as eight vectors of 4*lanes bytes (four consecutive k of each row), activations as groups of a q8 row
(kernel_abi.Q8_GROUP_BYTES) that every output row shares. int4 codes are 0..15 with zero at 8, so the group's offset,
-8 * sum(activations), is added; int8 codes are -127..127.

Code is emitted vector by vector, all rows of the tile for each: a weight vector is needed for a short time only, and
consecutive instructions belong to different sums, so that none waits for the one before it.
"""

from collections.abc import Callable, Sequence

from goinfer.bundle_format.kernel_abi import Q8_OFFSET
from goinfer.codegen.dsl import Ptr, V, bitcast, const, in_step, insert, intrinsic, shuffle, splat
from goinfer.codegen.target import Target

NIBBLES = ("int4", "int4min")
"""Formats of 4-bit codes. A minimum (int4min) is the caller's affair."""

_CHUNKS = 8
Codes = Callable[[int], V]
"""Loads vector c of a block's eight."""


def dot_rows(target: Target, fmt: str, parts: Sequence[Codes], groups: Sequence[Ptr]) -> list[V]:
    """Sums over the group as i32 [lanes], ordered by row of X, then by part."""
    sums = {"maddubs": _maddubs, "vnni": _vnni, "vnni-emulated": _vnni, "sdot": _sdot,
            "smmla": _smmla}[target.dot]  # fmt: skip
    return sums(target, fmt, parts, groups)


def _activations(target: Target, group: Ptr, chunk: int) -> V:
    """Four activations repeated in every lane, as bytes."""
    word = (group + 4 * chunk).load("i32", 4)
    return bitcast(splat(word, target.lanes), ("i8", 4 * target.lanes))


def _offsets(target: Target, fmt: str, parts: Sequence[Codes], groups: Sequence[Ptr], int8_shift: int = 0) -> list[V]:
    """What each sum starts from: -8 * sum for nibbles, times 2^int8_shift for int8 (0: nothing to take off)."""
    out = []
    for group in groups:
        start = splat((group + Q8_OFFSET).load("i32", 4), target.lanes)
        if fmt not in NIBBLES:
            start = start << int8_shift if int8_shift else const(0, start.spec)
        out += [start] * len(parts)
    return out


Step = Callable[[V, V, V], V]
"""(sum, weights, activations) -> sum."""


def _accumulate(target: Target, parts: Sequence[Codes], groups: Sequence[Ptr], sums: list[V], step: Step) -> list[V]:
    for chunk in range(_CHUNKS):
        weights = [codes(chunk) for codes in parts]
        for i, group in enumerate(groups):
            a = _activations(target, group, chunk)
            for j, w in enumerate(weights):
                slot = i * len(parts) + j
                sums[slot] = step(sums[slot], w, a)
        if len(groups) > 1 and target.dot != "vnni-emulated":  # whose vectors are wider than a register
            sums = in_step(sums)
    return sums


def _maddubs(target: Target, fmt: str, parts: Sequence[Codes], groups: Sequence[Ptr]) -> list[V]:
    """AVX2. Nibbles: |sum| <= 8 * 2 * 15 * 127 = 30480 fits int16, so a group needs one widening at its end.

    int8: sign(x, w) * |w| keeps vpmaddubsw from saturating (127 * 127 * 2 = 32258), widened at every chunk.
    """
    lanes = target.lanes
    byte, short, word = ("i8", 4 * lanes), ("i16", 2 * lanes), ("i32", lanes)
    ones = const(1, short)

    def nibbles(total: V, w: V, a: V) -> V:
        return total + intrinsic("llvm.x86.avx2.pmadd.ub.sw", short, w, a)

    def bytes_(total: V, w: V, a: V) -> V:
        magnitude = intrinsic("llvm.x86.avx2.psign.b", byte, w, w)
        signed = intrinsic("llvm.x86.avx2.psign.b", byte, a, w)
        pairs = intrinsic("llvm.x86.avx2.pmadd.ub.sw", short, magnitude, signed)
        return total + intrinsic("llvm.x86.avx2.pmadd.wd", word, pairs, ones)

    count = len(parts) * len(groups)
    if fmt not in NIBBLES:
        return _accumulate(target, parts, groups, [const(0, word)] * count, bytes_)
    halves = _accumulate(target, parts, groups, [const(0, short)] * count, nibbles)
    offsets = _offsets(target, fmt, parts, groups)
    return [
        intrinsic("llvm.x86.avx2.pmadd.wd", word, half, ones) + offset
        for half, offset in zip(halves, offsets, strict=True)
    ]


def _vnni(target: Target, fmt: str, parts: Sequence[Codes], groups: Sequence[Ptr]) -> list[V]:
    """vpdpbusd: unsigned weights times signed activations. int8 weights are shifted to unsigned by xor 0x80."""
    multiply = _vpdpbusd if target.dot == "vnni" else _vpdpbusd_written_out

    def unsigned(codes: Codes) -> Codes:
        return codes if fmt in NIBBLES else lambda chunk: codes(chunk) ^ -128

    starts = _offsets(target, fmt, parts, groups, int8_shift=4)
    return _accumulate(target, [unsigned(codes) for codes in parts], groups, starts, multiply)


def _vpdpbusd(total: V, w: V, a: V) -> V:
    return intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * total.lanes}", total.spec, total, w, a)


def _vpdpbusd_written_out(total: V, w: V, a: V) -> V:
    """What the instruction computes, byte by byte: lets a machine without it test the code around it."""
    weights, acts = bitcast(w, total.spec), bitcast(a, total.spec)
    for byte in range(4):
        total = total + ((weights >> (8 * byte)) & 255) * (acts << (24 - 8 * byte)).ashr(24)
    return total


def _sdot(target: Target, fmt: str, parts: Sequence[Codes], groups: Sequence[Ptr]) -> list[V]:
    """NEON sdot: signed times signed, every format directly."""

    def step(total: V, w: V, a: V) -> V:
        return intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", ("i32", 4), total, w, a)

    return _accumulate(target, parts, groups, _offsets(target, fmt, parts, groups), step)


def _smmla(target: Target, fmt: str, parts: Sequence[Codes], groups: Sequence[Ptr]) -> list[V]:
    """NEON smmla: two rows of X by two output rows, eight k at a time. A row without a partner takes sdot.

    Two vectors of four k each, zipped by output row, hold eight consecutive k of two output rows. A pair's sums lie
    as [x0 w0, x0 w1, x1 w0, x1 w1], and are brought into one vector of four outputs for each row at the end.
    """
    paired = len(groups) // 2 * 2
    zero, word = const(0, ("i32", 4)), ("i32", 4)
    sums = {(i, j, half): zero for i in range(0, paired, 2) for j in range(len(parts)) for half in range(2)}
    for chunk in range(0, _CHUNKS, 2):
        zipped = [_zipped(codes(chunk), codes(chunk + 1)) for codes in parts]
        for i in range(0, paired, 2):
            a = _two_rows(groups[i] + 4 * chunk, groups[i + 1] + 4 * chunk)
            for j, halves in enumerate(zipped):
                for half, w in enumerate(halves):
                    total = sums[i, j, half]
                    sums[i, j, half] = intrinsic("llvm.aarch64.neon.smmla.v4i32.v16i8", word, total, a, w)
    out = _offsets(target, fmt, parts, groups[:paired])
    for i in range(0, paired, 2):
        for j in range(len(parts)):
            low, high = sums[i, j, 0], sums[i, j, 1]
            for row, lanes in enumerate(([0, 1, 4, 5], [2, 3, 6, 7])):
                slot = (i + row) * len(parts) + j
                out[slot] = out[slot] + shuffle(low, high, lanes)
    return out + (_sdot(target, fmt, parts, groups[paired:]) if paired < len(groups) else [])


def _zipped(low: V, high: V) -> tuple[V, V]:
    """Vectors of k 0..3 and k 4..7 of four output rows as k 0..7 of rows 0 and 1, and of rows 2 and 3."""
    a, b = bitcast(low, ("i32", 4)), bitcast(high, ("i32", 4))
    pairs = [shuffle(a, b, lanes) for lanes in ([0, 4, 1, 5], [2, 6, 3, 7])]
    return bitcast(pairs[0], ("i8", 16)), bitcast(pairs[1], ("i8", 16))


def _two_rows(first: Ptr, second: Ptr) -> V:
    """Eight activations of each of two rows."""
    both = const(0, ("i64", 2))
    for i, at in enumerate((first, second)):
        both = insert(both, at.load("i64", 4), i)
    return bitcast(both, ("i8", 16))
