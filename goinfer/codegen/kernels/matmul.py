"""Matrix products Y[r, n] = sum_k X[r, k] * W[n, k] over packed weights, for every weight format and target.

Weights lie in panels of 16 output rows (DESIGN section 10); a vector register holds `lanes` of them, so a reduction
over k never crosses lanes: each output is one chain, ascending in k, whatever the tile. A tile is one panel times up
to 64 rows of X; inside, rows go by register tiles so that a weight is loaded and unpacked once for several rows.

Static attributes: format (f32, bf16, int8, int8int8, int4, int4min), epilogue ("store" or "add": Y += product), bias.
Operands: 0 weights, 1 X (f32 rows; q8 rows for int8int8, int4 and int4min), 2 Y (f32 rows), 3 bias (f32 [N padded]).
Ints: 0 K groups of 32, 1 X row stride, 2 Y row stride (bytes).
"""

from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP, PANEL, ROW_BLOCK
from goinfer.codegen.dot import dot_group
from goinfer.codegen.dsl import Ptr, V, bitcast, const, convert, fma, for_, i64, minimum, splat, zext
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.target import Target

BLOCK_BYTES = {"f32": 2048, "bf16": 1024, "int8": 544, "int8int8": 544, "int4": 288, "int4min": 320}
"""Bytes of a block of 16 rows x 32 k in each format; see compiler/quant/formats.py."""

_CODE_BYTES = {"int8": 512, "int8int8": 512, "int4": 256, "int4min": 256}
QUANTISED_INPUT = ("int8int8", "int4", "int4min")
"""Formats whose kernels read int8 activations."""


@dataclass(frozen=True)
class _Problem:
    """Sizes and addresses shared by the register tiles of one kernel."""

    frame: Frame
    fmt: str
    groups: V
    x: Ptr
    x_stride: V
    y: Ptr
    y_stride: V
    bias: Ptr | None

    @property
    def target(self) -> Target:
        return self.frame.target


def rows_per_tile(target: Target, fmt: str) -> int:
    """Rows of X in a register tile: as many as leave the accumulators and the unpacked weights in registers."""
    wide = target.registers == 32
    return 8 if wide else 4


@kernel("matmul")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    fmt = frame.attrs["format"]
    problem = _Problem(
        frame, fmt, frame.int(0), frame.ptr(1), frame.int(1), frame.ptr(2), frame.int(2),
        frame.ptr(3) if frame.attrs["bias"] else None,
    )  # fmt: skip
    weights, panels, rows = frame.ptr(0), frame.units, frame.count(frame.attrs["domain"])
    panel_bytes = problem.groups * BLOCK_BYTES[fmt]
    with for_(frame.tile0, frame.tile1) as tiles:
        panel, block = tiles.iv % panels, tiles.iv // panels
        start = block * ROW_BLOCK
        stop = minimum(start + ROW_BLOCK, rows)
        _row_block(problem, weights + panel * panel_bytes, panel, start, stop)


def _row_block(p: _Problem, weights: Ptr, panel: V, start: V, stop: V) -> None:
    """Rows [start, stop) against one panel: whole register tiles, then single rows."""
    tile = rows_per_tile(p.target, p.fmt)
    whole = start + (stop - start) // tile * tile
    with for_(start, whole, tile) as loop:
        _register_tile(p, weights, panel, loop.iv, tile)
    with for_(whole, stop) as loop:
        _register_tile(p, weights, panel, loop.iv, 1)


def _register_tile(p: _Problem, weights: Ptr, panel: V, row: V, n_rows: int) -> None:
    """n_rows rows against the panel: the parts of the panel one after the other, or together for a single row."""
    lanes = p.target.lanes
    parts = PANEL // lanes
    together = parts if n_rows == 1 or p.fmt not in QUANTISED_INPUT else 1
    x_rows = [p.x + (row + i) * p.x_stride for i in range(n_rows)]
    for first in range(0, parts, together):
        chosen = range(first, first + together)
        acc = _accumulate(p, weights, x_rows, chosen)
        for i in range(n_rows):
            out = p.y + (row + i) * p.y_stride + panel * (4 * PANEL)
            for j, part in enumerate(chosen):
                _epilogue(p, acc[i * together + j], out + 4 * lanes * part, panel, part)


def _accumulate(p: _Problem, weights: Ptr, x_rows: list[Ptr], parts: range) -> list[V]:
    """Sum over all groups of k; accumulators are ordered by row, then part."""
    zero = const(0.0, ("f32", p.target.lanes))
    with for_(0, p.groups, carry=[zero] * (len(x_rows) * len(parts))) as loop:
        block = weights + loop.iv * BLOCK_BYTES[p.fmt]
        if p.fmt in QUANTISED_INPUT:
            acc = _group_of_codes(p, block, x_rows, loop.iv, parts, loop.args)
        else:
            acc = _group_of_floats(p, block, x_rows, loop.iv, parts, loop.args)
        loop.next(*acc)
    return loop.results


def _group_of_codes(p: _Problem, block: Ptr, x_rows: list[Ptr], group: V, parts: range, acc: list[V]) -> list[V]:
    """acc += int32 dot over the group * (weight scale * activation scale), one fma a lane.

    A weight with a minimum is (code - 8) * scale + middle, middle = minimum + 8 * scale: taken from the minimum itself,
    the two sums would be large and cancel.
    """
    lanes = p.target.lanes
    padded = p.groups * GROUP
    out = list(acc)
    for j, part in enumerate(parts):
        codes = _load_codes(p, block, part)
        scale = _field(p, block, 0, part)
        middle = fma(scale, const(8.0, scale.spec), _field(p, block, 1, part)) if p.fmt == "int4min" else None
        for i, x in enumerate(x_rows):
            x_scale = (x + padded + group * 4).load("f32", 4)
            x_sum = (x + padded + p.groups * 4 + group * 4).load("i32", 4)
            total = convert(dot_group(p.target, p.fmt, codes, x + group * GROUP, x_sum), "f32")
            slot = i * len(parts) + j
            out[slot] = fma(total, scale * splat(x_scale, lanes), out[slot])
            if middle is not None:
                out[slot] = fma(middle, splat(convert(x_sum, "f32") * x_scale, lanes), out[slot])
    return out


def _field(p: _Problem, block: Ptr, i: int, part: int) -> V:
    """The f16 scales (0) or minima (1) of the part's rows, as f32."""
    at = block + (_CODE_BYTES[p.fmt] + 2 * PANEL * i + 2 * p.target.lanes * part)
    return convert(at.load(("f16", p.target.lanes), 2), "f32")


def _load_codes(p: _Problem, block: Ptr, part: int) -> list[V]:
    """Eight vectors of 4*lanes bytes, vector c holding k 4c..4c+3 of each row of the part; nibbles become 0..15."""
    width = 4 * p.target.lanes
    if p.fmt == "int8int8":
        return [(block + (64 * c + width * part)).load(("i8", width), 32) for c in range(8)]
    out = []
    for c in range(4):
        packed = (block + (64 * c + width * part)).load(("i8", width), 32)
        low = packed & 15
        wide = bitcast(packed, ("i32", width // 4)) >> 4
        out += [low, bitcast(wide, ("i8", width)) & 15]
    return out


def _group_of_floats(p: _Problem, block: Ptr, x_rows: list[Ptr], group: V, parts: range, acc: list[V]) -> list[V]:
    """acc += w * x for 32 k in ascending order; int8 weights sum unscaled inside the group, then one fma by scale."""
    if p.fmt == "int8":
        return _group_of_scaled(p, block, x_rows, group, parts, acc)
    width = 4 if p.fmt == "f32" else 2
    unroll = 4
    with for_(0, GROUP, unroll, carry=acc) as loop:
        out = loop.args
        for u in range(unroll):
            at = block + (loop.iv + u) * (PANEL * width)
            w = [_float_weights(p, at + part * p.target.lanes * width) for part in parts]
            out = _fma_column(x_rows, group * GROUP + loop.iv + u, w, out)
        loop.next(*out)
    return loop.results


def _fma_column(x_rows: list[Ptr], k: V, w: list[V], acc: list[V]) -> list[V]:
    out = []
    for i, x in enumerate(x_rows):
        value = splat((x + k * 4).load("f32", 4), w[0].lanes)
        out += [fma(w[j], value, acc[i * len(w) + j]) for j in range(len(w))]
    return out


def _float_weights(p: _Problem, at: Ptr) -> V:
    """One k of `lanes` rows as f32: a load, or a bf16 load widened by a shift."""
    lanes = p.target.lanes
    if p.fmt == "f32":
        return at.load(("f32", lanes), 16)
    return bitcast(zext(at.load(("i16", lanes), 8), "i32") << 16, ("f32", lanes))


def _group_of_scaled(p: _Problem, block: Ptr, x_rows: list[Ptr], group: V, parts: range, acc: list[V]) -> list[V]:
    lanes = p.target.lanes
    zero = const(0.0, ("f32", lanes))
    with for_(0, 8, carry=[zero] * len(acc)) as loop:
        inner = loop.args
        codes = [
            (block + loop.iv * 64 + 4 * lanes * part).load(("i32", lanes), 16) for part in parts
        ]
        for i in range(4):
            w = [convert((c << (24 - 8 * i)).ashr(24), "f32") for c in codes]
            inner = _fma_column(x_rows, group * GROUP + loop.iv * 4 + i, w, inner)
        loop.next(*inner)
    sums = loop.results
    out = []
    for i in range(len(x_rows)):
        for j, part in enumerate(parts):
            scale = convert((block + (512 + 2 * lanes * part)).load(("f16", lanes), 2), "f32")
            slot = i * len(parts) + j
            out.append(fma(sums[slot], scale, acc[slot]))
    return out


def _epilogue(p: _Problem, acc: V, out: Ptr, panel: V, part: int) -> None:
    """Add the bias, add into or store to Y."""
    lanes = p.target.lanes
    if p.bias is not None:
        at = p.bias + panel * i64(4 * PANEL) + 4 * lanes * part
        acc = acc + at.load(("f32", lanes), 16)
    if p.frame.attrs["epilogue"] == "add":
        acc = out.load(("f32", lanes), 16) + acc
    out.store(acc, 16)
