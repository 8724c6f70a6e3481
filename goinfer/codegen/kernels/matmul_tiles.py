"""What the matmul kernels share: packed panels of weights times rows of activations, one register tile at a time.

Weights lie in panels of 16 output rows (DESIGN section 10); a vector register holds `lanes` of them, so a reduction
over k never crosses lanes: each output is one chain, ascending in k, whatever the tile. A register tile is some rows
of X times one or more parts (vectors of output rows) of a panel; a weight is loaded and unpacked once for all its rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP, PANEL, Q8_GROUP_BYTES, Q8_SCALE, Q8_WEIGHTED
from goinfer.codegen.dot import dot_rows
from goinfer.codegen.dsl import (
    CACHE_LINE,
    Ptr,
    V,
    bitcast,
    const,
    convert,
    fma,
    for_,
    i64,
    minimum,
    prefetch,
    select,
    splat,
    while_,
    zext,
)
from goinfer.codegen.kernel import Frame
from goinfer.codegen.target import Target

BLOCK_BYTES = {"f32": 2048, "bf16": 1024, "int8": 544, "int8int8": 544, "int4": 288, "int4min": 320}
"""Bytes of a block of 16 rows x 32 k in each format; see compiler/quant/formats.py."""

_CODE_BYTES = {"int8": 512, "int8int8": 512, "int4": 256, "int4min": 256}
QUANTISED_INPUT = ("int8int8", "int4", "int4min")
"""Formats whose kernels read int8 activations."""

_AHEAD = 16
"""Blocks between the one in work and the one asked for: 4.6 kB of int4. Panels follow each other in memory as tiles do
in a thread's run, so this reaches into the next panel; the hardware's own prefetch stops at a page's end."""

_FIRST_CACHE, _PANELS = 28 << 10, 8
"""Bytes of activations that may stay in the first cache, and the panels that then pass by together."""

_FLOAT_SUMS = 16
"""Sums that a tile of float weights may keep: it needs no other registers than a weight and an activation."""

Store = Callable[[int, int, V], None]
"""Takes a finished vector: (row of the tile, part of the panel, its sums)."""


@dataclass(frozen=True)
class Product:
    """A weight format and the rows it meets: `groups` of 32 k, rows of X `x_stride` bytes apart."""

    target: Target
    fmt: str
    groups: V
    x: Ptr
    x_stride: V

    @property
    def panel_bytes(self) -> V:
        """Bytes of a panel of weights."""
        return self.groups * BLOCK_BYTES[self.fmt]

    @property
    def tile_rows(self) -> tuple[int, ...]:
        """Rows of the register tiles, largest first: accumulators and sums in flight fit the registers.

        Sizes between the largest and one cost compile time and are worth it for small batches of the formats of codes.
        """
        if self.fmt not in QUANTISED_INPUT:
            return (8, 1) if self.target.registers == 32 else (4, 1)
        if self.target.registers == 16:
            return (4, 2, 1)
        return (12, 8, 4, 2, 1) if self.target.lanes == 16 else (8, 4, 2, 1)


def for_row_tiles(p: Product, start: V, stop: V, body: Callable[[V, int], None]) -> None:
    """body(first row, rows) over rows [start, stop): as many of the largest tile as fit, then of the next."""
    at = start
    for size in p.tile_rows:
        past = at + (stop - at) // size * size
        with for_(at, past, size) as loop:
            body(loop.iv, size)
        at = past


def for_panels(frame: Frame, p: Product, body: Callable[[V, V, V], None]) -> None:
    """body(row block, first panel, panel past the last) over the step's tiles, some panels of one row block at a time.

    Where the rows of a register tile fit the first cache they stay there while several panels pass by; where they do
    not, a panel stays while all rows pass by.
    """
    panels = frame.units
    together = select(p.x_stride * p.tile_rows[0] <= _FIRST_CACHE, i64(_PANELS), i64(1))

    def step(tile: V) -> list[V]:
        block, first = tile // panels, tile % panels
        past = minimum(minimum(first + together, panels), first + (frame.tile1 - tile))
        body(block, first, past)
        return [tile + (past - first)]

    while_([frame.tile0], lambda tile: tile < frame.tile1, step)


def panel_times_rows(p: Product, weights: Ptr, row: V, n_rows: int, store: Store) -> None:
    """Rows [row, row + n_rows) against the panel at `weights`; few rows take several parts of the panel together."""
    parts = PANEL // p.target.lanes
    room = p.tile_rows[0] if p.fmt in QUANTISED_INPUT else _FLOAT_SUMS
    together = min(parts, max(1, 1 << (room // n_rows).bit_length() - 1))
    x_rows = [p.x + (row + i) * p.x_stride for i in range(n_rows)]
    for first in range(0, parts, together):
        chosen = range(first, first + together)
        sums = _accumulate(p, weights, x_rows, chosen)
        for i in range(n_rows):
            for j, part in enumerate(chosen):
                store(i, part, sums[i * together + j])


def _accumulate(p: Product, weights: Ptr, x_rows: list[Ptr], parts: range) -> list[V]:
    """Sum over all groups of k; accumulators are ordered by row, then part."""
    zero = const(0.0, ("f32", p.target.lanes))
    with for_(0, p.groups, carry=[zero] * (len(x_rows) * len(parts))) as loop:
        block = weights + loop.iv * BLOCK_BYTES[p.fmt]
        for line in range(0, BLOCK_BYTES[p.fmt], CACHE_LINE):
            prefetch(block + (_AHEAD * BLOCK_BYTES[p.fmt] + line))
        if p.fmt in QUANTISED_INPUT:
            at = [x + loop.iv * Q8_GROUP_BYTES for x in x_rows]
            acc = _group_of_codes(p, block, at, parts, loop.args)
        elif p.fmt == "int8":
            acc = _group_of_scaled(p, block, x_rows, loop.iv, parts, loop.args)
        else:
            acc = _group_of_floats(p, block, x_rows, loop.iv, parts, loop.args)
        loop.next(*acc)
    return loop.results


def _group_of_codes(p: Product, block: Ptr, x_groups: list[Ptr], parts: range, acc: list[V]) -> list[V]:
    """acc += int32 dot over the group * (weight scale * activation scale), one fma a lane.

    A weight with a minimum is (code - 8) * scale + middle, middle = minimum + 8 * scale: taken from the minimum itself,
    the two sums would be large and cancel. The middle meets the sum of the activations, which their row holds.
    """
    lanes = p.target.lanes
    sums = dot_rows(p.target, p.fmt, [_codes(p, block, part) for part in parts], x_groups)
    out = list(acc)
    for j, part in enumerate(parts):
        scale = _field(p, block, 0, part)
        middle = fma(scale, const(8.0, scale.spec), _field(p, block, 1, part)) if p.fmt == "int4min" else None
        for i, x in enumerate(x_groups):
            slot = i * len(parts) + j
            x_scale = splat((x + Q8_SCALE).load("f32", 4), lanes)
            out[slot] = fma(convert(sums[slot], "f32"), scale * x_scale, out[slot])
            if middle is not None:
                out[slot] = fma(middle, splat((x + Q8_WEIGHTED).load("f32", 4), lanes), out[slot])
    return out


def _field(p: Product, block: Ptr, i: int, part: int) -> V:
    """The f16 scales (0) or minima (1) of the part's rows, as f32."""
    at = block + (_CODE_BYTES[p.fmt] + 2 * PANEL * i + 2 * p.target.lanes * part)
    return convert(at.load(("f16", p.target.lanes), 2), "f32")


def _codes(p: Product, block: Ptr, part: int) -> Callable[[int], V]:
    """Loads vector c of eight: 4*lanes bytes, k 4c..4c+3 of each row of the part; nibbles become 0..15.

    A byte of 4-bit codes holds two of them, so vectors 2i and 2i + 1 share a load (LLVM merges the two).
    """
    width = 4 * p.target.lanes

    def load(chunk: int) -> V:
        if p.fmt == "int8int8":
            return (block + (64 * chunk + width * part)).load(("i8", width), 32)
        packed = (block + (64 * (chunk // 2) + width * part)).load(("i32", width // 4), 32)
        nibbles = (packed >> 4 if chunk % 2 else packed) & 0x0F0F0F0F
        return bitcast(nibbles, ("i8", width))

    return load


def _group_of_floats(p: Product, block: Ptr, x_rows: list[Ptr], group: V, parts: range, acc: list[V]) -> list[V]:
    """acc += w * x for 32 k in ascending order."""
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


def _float_weights(p: Product, at: Ptr) -> V:
    """One k of `lanes` rows as f32: a load, or a bf16 load widened by a shift."""
    lanes = p.target.lanes
    if p.fmt == "f32":
        return at.load(("f32", lanes), 16)
    return bitcast(zext(at.load(("i16", lanes), 8), "i32") << 16, ("f32", lanes))


def _group_of_scaled(p: Product, block: Ptr, x_rows: list[Ptr], group: V, parts: range, acc: list[V]) -> list[V]:
    """int8 weights sum unscaled inside the group, then one fma by their scale."""
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
            slot = i * len(parts) + j
            out.append(fma(sums[slot], _field(p, block, 0, part), acc[slot]))
    return out
