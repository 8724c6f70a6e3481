"""What the parts of the attention kernel share: static shape, scratch memory, the rows of a register tile, a block."""

from collections.abc import Callable
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import KV_BLOCK
from goinfer.codegen.dsl import Ptr, V, convert, i64, if_else, maximum, minimum, scratch
from goinfer.codegen.kernel import Frame
from goinfer.codegen.kernels.kv_cache import KvLayout, page_of
from goinfer.codegen.target import Target

SCORE_ROW = 4 * KV_BLOCK
"""Bytes of one row of the score buffer."""

MASKED = float("-inf")
"""Score of a key that a row may not see: its exponential is exactly 0."""

LOWEST = -1e30
"""Running maximum before any key was seen: finite, so that differences from it are numbers."""


@dataclass(frozen=True)
class Shape:
    """Static facts of one attention kernel."""

    target: Target
    kv: KvLayout
    softcap: bool

    @property
    def lanes(self) -> int:
        """Lanes of a vector."""
        return self.target.lanes

    @property
    def tile_rows(self) -> int:
        """Rows that share each loaded key and value: as many as leave the sums in registers."""
        return 8 if self.lanes == 16 else 4

    def by_row_count(self, rows: "Rows", emit: Callable[[int], None]) -> None:
        """Emit code for a lone row and for a register tile of rows, and the choice between them."""
        if_else(rows.count.eq(1), lambda: emit(1), lambda: emit(self.tile_rows))

    @property
    def value_vectors(self) -> int:
        """Vectors of a stored value."""
        return self.kv.value_dims // self.lanes

    @property
    def value_bytes(self) -> int:
        """Bytes of a padded value in f32."""
        return 4 * self.kv.value_dims


@dataclass(frozen=True)
class Scratch:
    """Stack memory of a call, a row of each for every row of the register tile.

    Weights have a buffer of their own: written over the scores, LLVM would turn the masking into masked stores, which
    are microcode on AMD (the softmax took three times as long).
    """

    scores: Ptr
    weights: Ptr
    total: Ptr
    partial: Ptr
    state: Ptr
    """Per row 4 floats: running maximum, running sum of exponentials, factors of the old and the new part."""

    @staticmethod
    def allocate(shape: Shape) -> "Scratch":
        """Reserve it in the function's frame."""
        rows = shape.tile_rows
        return Scratch(
            scratch(rows * SCORE_ROW), scratch(rows * SCORE_ROW), scratch(rows * shape.value_bytes),
            scratch(rows * shape.value_bytes), scratch(16 * rows),
        )  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """`count` rows of one slot at consecutive positions from `first` on, which one query head handles together.

    Code for a fixed number of rows computes rows past the count as repetitions of the last one; they are thrown away.
    `cache` is the byte offset of the KV head inside a page.
    """

    count: V
    first: V
    queries: Ptr
    stride: V
    pages: Ptr
    cache: V
    reach: V
    """Keys a row sees, itself included; huge where there is no window."""

    @property
    def last(self) -> V:
        """Position of the last real row."""
        return self.first + self.count - 1

    def query(self, row: int) -> Ptr:
        """Address of a row's query."""
        return self.queries + minimum(i64(row), self.count - 1) * self.stride

    def oldest(self, row: V | int) -> V:
        """Oldest position that row `row` sees."""
        return maximum(self.first + row - self.reach + 1, i64(0))

    def head_of(self, position: V) -> Ptr:
        """Address of the KV head in the page of a position."""
        return page_of(self.pages, position) + self.cache


@dataclass(frozen=True)
class Block:
    """A stretch of KV_BLOCK absolute positions and the rows that walk it.

    It begins at `start`; [lo, hi) is the part that some row of the tile sees.
    """

    shape: Shape
    scratch: Scratch
    rows: Rows
    start: V
    lo: V
    hi: V

    @staticmethod
    def of(shape: Shape, scratch: Scratch, rows: Rows, start: V) -> "Block":
        """The block that begins at `start`."""
        lo, hi = maximum(start, rows.oldest(0)), minimum(start + KV_BLOCK, rows.last + 1)
        return Block(shape, scratch, rows, start, lo, hi)

    def seen_by(self, row: V) -> V:
        """Whether real row `row` sees any key of the block."""
        first = maximum(self.start, self.rows.oldest(row))
        return first < minimum(self.start + KV_BLOCK, self.rows.first + row + 1)

    def column(self, position: V) -> V:
        """Byte offset of a position in a row of scores or weights."""
        return (position - self.start) * 4


def load_index(frame: Frame, operand: int, i: V) -> V:
    """Element i of an i32 operand, as i64."""
    return convert((frame.ptr(operand) + i * 4).load("i32", 4), "i64")
