"""A GGUF file's own blocks put in panels by machine code: codes, scales and minima are moved, nothing is computed.

integer.py says what is moved where (`repack` of a grid); this says it again for the types that most files consist of.
Source blocks hold 32 weights: one or two f16, then 16 bytes of nibbles (byte i has k = i low and k = 16 + i high) or 32
int8 codes.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from goinfer.compiler.checkpoints.ggml_types import BY_NAME
from goinfer.compiler.quant.format import Bytes
from goinfer.compiler.quant.panels import PANEL_ROWS

if TYPE_CHECKING:
    from goinfer.codegen.dsl import Ptr, V

_FIELDS: Final = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}
"""f16 numbers of a block: the scale, and a minimum where there is one."""

_FORMATS: Final = {"Q4_0": ("int4", 288), "Q4_1": ("int4min", 320), "Q8_0": ("int8", 544)}
"""The format that keeps a type as it is, and bytes of a block of it (32 k of 16 rows)."""


def repack(fmt: str, kind: str, blocks: Bytes) -> Bytes | None:
    """Packed bytes with exactly the codes and fields of source blocks [n, bytes] of a GGML type.

    None where that is not for this code to do: another pair of formats, rows that do not fill panels, the code -128,
    which int8 has not, or a machine that cannot run it.
    """
    rows, row_bytes = blocks.shape
    if kind not in _FORMATS or _FORMATS[kind][0] != fmt or rows % PANEL_ROWS or not blocks.flags.c_contiguous:
        return None
    code = _functions()
    if code is None:
        return None
    panels, columns = rows // PANEL_ROWS, row_bytes // BY_NAME[kind].block_bytes
    out = np.empty(panels * columns * _FORMATS[kind][1], np.uint8)
    least = np.zeros(32, np.int8)
    code[kind](blocks.ctypes.data, row_bytes, panels, columns, out.ctypes.data, least.ctypes.data)
    return None if least.min() == -128 else out


@functools.cache
def _functions() -> dict[str, Any] | None:
    """The compiled functions by source type, with the memory they live in."""
    from goinfer.codegen import cache
    from goinfer.codegen.host import compile_for_host

    code = compile_for_host(_define, f"blocks {cache.sources('compiler/quant')}")
    if code is None:
        return None
    signature = [ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_void_p]
    return {"memory": code, **{name: code.function(name, *signature) for name in _FORMATS}}


def _define(module: Any, _target: Any) -> None:
    """Add a function for each type: (blocks, row bytes, panels, blocks of a row, out, least code) to an MLIR module."""
    from goinfer.codegen.dsl import for_
    from goinfer.codegen.kernel import define_function

    def define(kind: str) -> None:
        def body(source: Ptr, stride: V, panels: V, blocks: V, out: Ptr, least: Ptr) -> None:
            taken, made = BY_NAME[kind].block_bytes, _FORMATS[kind][1]
            scales = made - 2 * PANEL_ROWS * _FIELDS[kind]
            with for_(0, panels) as panel, for_(0, blocks) as block, for_(0, PANEL_ROWS) as row:
                block_at = source + (panel.iv * PANEL_ROWS + row.iv) * stride + block.iv * taken
                place = out + (panel.iv * blocks + block.iv) * made
                for field in range(_FIELDS[kind]):
                    half = (block_at + 2 * field).load("i16")
                    (place + (scales + 2 * PANEL_ROWS * field) + row.iv * 2).store(half)
                codes = block_at + 2 * _FIELDS[kind]
                if kind == "Q8_0":
                    _bytes(codes, place + row.iv * 4, least)
                else:
                    _nibbles(codes, place + row.iv * 4)

        define_function(module, kind, ("ptr", "i64", "i64", "i64", "ptr", "ptr"), body)

    for kind in _FORMATS:
        define(kind)


def _nibbles(codes: Ptr, place: Ptr) -> None:
    """One row's 32 nibbles: load j takes k 8j .. 8j+3 low and 8j+4 .. 8j+7 high."""
    from goinfer.codegen.dsl import extract

    both = codes.load(("i32", 4))
    halves = both & 0x0F0F0F0F, (both >> 4) & 0x0F0F0F0F
    for j in range(4):
        word = 2 * (j % 2)
        low, high = (extract(halves[j // 2], word + i) for i in range(2))
        (place + 64 * j).store(low | (high << 4))


def _bytes(codes: Ptr, place: Ptr, least: Ptr) -> None:
    """One row's 32 codes: load j takes k 4j .. 4j+3. Keeps the least code of each column."""
    from goinfer.codegen.dsl import extract, minimum

    values = codes.load(("i8", 32))
    least.store(minimum(least.load(("i8", 32)), values))
    words = codes.load(("i32", 8))
    for j in range(8):
        (place + 64 * j).store(extract(words, j))
