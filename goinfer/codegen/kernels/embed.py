"""Token ids to rows of the residual stream: one row of a packed weight, unpacked and scaled.

Static attributes: format (f32, bf16, int8, int4, int4min; see compiler/quant/formats.py).
Operands: 0 tokens i32, 1 weights, 2 out (f32 rows). Ints: 0 K groups of 32, 1 out stride, 2 hidden size.
Floats: 0 factor of the embedding. The engine has checked that every token is below the vocabulary size.
"""

from goinfer.bundle_format.kernel_abi import GROUP, PANEL
from goinfer.codegen.dsl import Ptr, V, bitcast, const, convert, for_, insert, shuffle, splat, zext
from goinfer.codegen.errors import CompileError
from goinfer.codegen.kernel import Frame, for_rows_of_tile, kernel
from goinfer.codegen.kernels.matmul_tiles import BLOCK_BYTES


@kernel("embed")
def build(frame: Frame) -> None:
    """Emit the loop over rows; see the module docstring for attributes and operands."""
    fmt = frame.attrs["format"]
    if fmt not in _ROWS:
        raise CompileError(f"embed: weight format {fmt!r} has no kernel; known: {', '.join(_ROWS)}")
    groups, factor = frame.int(0), frame.float(0)

    def row(index: V) -> None:
        token = convert((frame.ptr(0) + index * 4).load("i32", 4), "i64")
        panel = frame.ptr(1) + token // PANEL * groups * BLOCK_BYTES[fmt]
        _ROWS[fmt](panel, token % PANEL, frame.ptr(2) + index * frame.int(1), groups, factor)

    for_rows_of_tile(frame, "rows", row)


def _f32_row(panel: Ptr, row: V, out: Ptr, groups: V, factor: V) -> None:
    """The row's value of k lies PANEL values after that of k - 1, across blocks too."""
    with for_(0, groups * GROUP) as k:
        value = (panel + (k.iv * PANEL + row) * 4).load("f32", 4)
        (out + k.iv * 4).store(value * factor, 4)


def _bf16_row(panel: Ptr, row: V, out: Ptr, groups: V, factor: V) -> None:
    with for_(0, groups * GROUP) as k:
        half = (panel + (k.iv * PANEL + row) * 2).load("i16", 2)
        (out + k.iv * 4).store(bitcast(zext(half, "i32") << 16, "f32") * factor, 4)


def _int8_row(panel: Ptr, row: V, out: Ptr, groups: V, factor: V) -> None:
    with for_(0, groups) as loop:
        block = panel + loop.iv * BLOCK_BYTES["int8"]
        codes = bitcast(_words(block, row, 8), ("i8", GROUP))
        _store_scaled(codes, block + (row * 2 + 512), out + loop.iv * (4 * GROUP), factor)


def _int4_row(panel: Ptr, row: V, out: Ptr, groups: V, factor: V) -> None:
    with for_(0, groups) as loop:
        block = panel + loop.iv * BLOCK_BYTES["int4"]
        _store_scaled(_nibbles(block, row) - 8, block + (row * 2 + 256), out + loop.iv * (4 * GROUP), factor)


def _int4min_row(panel: Ptr, row: V, out: Ptr, groups: V, factor: V) -> None:
    """(code * scale + minimum) * factor, each operation rounded."""
    with for_(0, groups) as loop:
        block = panel + loop.iv * BLOCK_BYTES["int4min"]
        scale, least = [splat(convert((block + (row * 2 + at)).load("f16", 2), "f32"), GROUP) for at in (256, 288)]
        values = convert(_nibbles(block, row), "f32") * scale + least
        (out + loop.iv * (4 * GROUP)).store(values * splat(factor, GROUP), 4)


_ROWS = {"f32": _f32_row, "bf16": _bf16_row, "int8": _int8_row, "int4": _int4_row, "int4min": _int4min_row}


def _nibbles(block: Ptr, row: V) -> V:
    """The row's 32 codes of a block, 0..15, in order."""
    words = _words(block, row, 4)
    low, high = words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F
    return bitcast(shuffle(low, high, [0, 4, 1, 5, 2, 6, 3, 7]), ("i8", GROUP))


def _words(block: Ptr, row: V, count: int) -> V:
    """The row's word of each of the block's 64-byte loads."""
    out = const(0, ("i32", count))
    for j in range(count):
        out = insert(out, (block + (row * 4 + 64 * j)).load("i32", 4), j)
    return out


def _store_scaled(codes: V, scale_at: Ptr, out: Ptr, factor: V) -> None:
    """code * scale * factor, in that order."""
    scale = convert(scale_at.load("f16", 2), "f32")
    out.store(convert(codes, "f32") * splat(scale, GROUP) * splat(factor, GROUP), 4)
