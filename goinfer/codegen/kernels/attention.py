"""Attention of query rows over the paged KV cache, exact in the numerics contract's sense.

Static attributes: head_dim, n_heads, n_kv_heads, kv (f32, f16, int8), out ("f32" or "q8"), softcap, sinks.
Operands: 0 query rows (f32, already scaled), 1 output rows [n_heads * head_dim], 2 page table u64 [slots][max_pages],
3 positions i32, 4 slots i32, 5 attention tiles i32 [n][4], 6 sinks f32 [n_heads], 7 partials of blocks, int 5 bytes
each, 8 counters i64 [blocks][n_kv_heads], all zero. Ints: 0 query stride, 1 output stride, 2 byte offset of the layer
inside a page, 3 max_pages, 4 window (0: none), 5 stride of the partials. Floats: 0 softcap. Tiles: unit
t % n_kv_heads is the KV head, t // n_kv_heads the attention tile.

An attention tile is (first row, rows, block, record): rows of one slot at consecutive positions. With block -1 it is
their whole attention. Otherwise it is one block of a lone row's context, the row has a tile for each of its blocks
0..n-1, and `record` is where in the partials its block 0 lies. Whichever of these tiles ends last joins the partials
and puts its counter back to zero, so no thread waits for another.

The cache is walked in blocks of KV_BLOCK absolute positions, ascending. A block yields maximum, sum of exponentials
and weighted sum of values for each row and head; these are merged into the row's running three. Each of the steps has
one order per row and leaves out masked positions exactly, so a row's bytes depend on its own keys alone. Pages wholly
below every row's window are never touched.
"""

import math
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP, KV_BLOCK, partial_bytes
from goinfer.codegen.dsl import (
    Ptr,
    V,
    atomic_add,
    atomic_store,
    choose,
    const,
    convert,
    for_,
    i64,
    if_,
    if_else,
    maximum,
    minimum,
    select,
)
from goinfer.codegen.errors import CompileError
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.kernels import attention_merge as merge
from goinfer.codegen.kernels.attention_rows import Block, Partials, Rows, Scratch, Shape, whole_tiles
from goinfer.codegen.kernels.attention_scores import emit_scores
from goinfer.codegen.kernels.attention_softmax import emit_softmax
from goinfer.codegen.kernels.attention_values import emit_values
from goinfer.codegen.kernels.kv_cache import kv_layout

NO_WINDOW = 1 << 40
"""Reach of a row without a window: more than any position."""


@kernel("attention")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    attrs = frame.attrs
    if attrs["n_heads"] % attrs["n_kv_heads"]:
        raise CompileError(f"{attrs['n_heads']} query heads do not divide over {attrs['n_kv_heads']} KV heads")
    if attrs["out"] == "q8" and attrs["head_dim"] % GROUP:
        raise CompileError(f"head_dim {attrs['head_dim']} is no multiple of {GROUP}: quantise in a step of its own")
    heads = attrs["n_heads"] // attrs["n_kv_heads"]
    shape = Shape(frame.target, kv_layout(attrs["head_dim"], attrs["kv"]), heads, attrs["softcap"])
    scratch = Scratch.allocate(shape)
    with for_(frame.tile0, frame.tile1) as loop:
        kv_head, tile = loop.iv % attrs["n_kv_heads"], frame.ptr(5) + loop.iv // attrs["n_kv_heads"] * 16
        first, count, block, record = (convert((tile + 4 * i).load("i32", 4), "i64") for i in range(4))
        with for_(0, count, shape.pass_rows) as some:
            number = minimum(count - some.iv, i64(shape.pass_rows))
            _Pass(frame, shape, scratch, kv_head, first + some.iv, number, block, record).emit()


@dataclass(frozen=True)
class _Pass:
    """Rows [row, row + count) of an attention tile and one KV head."""

    frame: Frame
    shape: Shape
    scratch: Scratch
    kv_head: V
    row: V
    count: V
    block: V
    record: V

    def emit(self) -> None:
        """Walk the blocks, then join and write what is complete."""
        split, rows = self.block >= 0, self._rows()
        self._start(rows)
        oldest, end = rows.oldest(0) & -KV_BLOCK, rows.last + 1
        first = select(split, maximum(self.block * KV_BLOCK, oldest), oldest)
        last = select(split, minimum((self.block + 1) * KV_BLOCK, end), end)
        with for_(first, last, KV_BLOCK) as loop:
            out = Partials.choose(split, self._stored(loop.iv), self.scratch.block)
            block = Block.of(self.shape, self.scratch, rows, out, loop.iv)
            emit_scores(block)
            emit_softmax(block, self.frame.float(0) if self.shape.softcap else None)
            emit_values(block)
            with if_(self.block < 0):
                merge.fold(block)
        if_else(split, lambda: self._join_if_last(rows), lambda: self._finish(rows))

    def _rows(self) -> Rows:
        frame, shape = self.frame, self.shape
        query = frame.ptr(0) + self.row * frame.int(0) + self.kv_head * (shape.heads * shape.query_bytes)
        lone = self.count.eq(1)
        with if_(self.count > 1):
            self._gather_queries(query)
        position, slot = (convert((frame.ptr(i) + self.row * 4).load("i32", 4), "i64") for i in (3, 4))
        window = frame.int(4)
        return Rows(
            self.count, self.count * shape.heads, position, choose(lone, query, self.scratch.queries),
            frame.ptr(2) + slot * frame.int(3) * 8, frame.int(2) + self.kv_head * shape.kv.head_bytes,
            select(window > 0, window, i64(NO_WINDOW)),
        )  # fmt: skip

    def _gather_queries(self, query: Ptr) -> None:
        """Put the lines' queries side by side. Lines past the last get zeros: leftovers might be slow numbers."""
        shape, scratch = self.shape, self.scratch
        row_bytes = shape.heads * shape.query_bytes
        lanes = math.gcd(row_bytes // 4, shape.lanes)
        with for_(0, self.count) as row, for_(0, row_bytes, 4 * lanes) as column:
            value = (query + row.iv * self.frame.int(0) + column.iv).load(("f32", lanes), 4)
            (scratch.queries + row.iv * row_bytes + column.iv).store(value, 4)
        lines = self.count * shape.heads
        with for_(lines * shape.query_bytes, whole_tiles(lines) * shape.query_bytes, 4) as loop:
            (scratch.queries + loop.iv).store(const(0.0, "f32"), 4)

    def _start(self, rows: Rows) -> None:
        sinks = self.frame.ptr(6) + self.kv_head * (4 * self.shape.heads) if self.frame.attrs["sinks"] else None
        merge.start(self.shape, self.scratch, rows, sinks)

    def _stored(self, position: V) -> Partials:
        """Partials of the block that holds a position, where all threads see them."""
        at = (self.record + (position >> 8)) * self.frame.int(5)
        nbytes = partial_bytes(self.shape.kv.head_dim, self.shape.heads)
        return Partials.at(self.frame.ptr(7) + at + self.kv_head * nbytes, self.shape.heads)

    def _join_if_last(self, rows: Rows) -> None:
        """Count this tile; if all others of its row are done, join the partials of the blocks the row sees."""
        counter = self.frame.ptr(8) + (self.record * self.frame.attrs["n_kv_heads"] + self.kv_head) * 8
        with if_(atomic_add(counter, i64(1)).eq(rows.last >> 8)):
            atomic_store(counter, i64(0))
            with for_(rows.oldest(0) & -KV_BLOCK, rows.last + 1, KV_BLOCK) as loop:
                merge.fold(Block.of(self.shape, self.scratch, rows, self._stored(loop.iv), loop.iv))
            self._finish(rows)

    def _finish(self, rows: Rows) -> None:
        out = self.frame.ptr(1) + self.row * self.frame.int(1)
        merge.finish(self.frame, self.shape, self.scratch, rows, out, self.kv_head)
