"""What the parts of the attention kernel share: static shape, scratch memory, the lines of a pass, a block.

A line is one (row, query head) pair of the KV head at hand, line = row * heads + head: everything that one loaded key
or value serves.
"""

import itertools
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import ATTENTION_ROWS, KV_BLOCK, PAGE, partial_bytes, round_up
from goinfer.codegen.dsl import Ptr, V, choose, for_, i64, maximum, minimum, scratch
from goinfer.codegen.kernels.kv_cache import KEY_GROUP, KvLayout, page_of
from goinfer.codegen.target import Target

SCORE_ROW = 4 * KV_BLOCK + 64
"""Bytes of one line of the score buffer; the extra 64 spread the lines over the sets of the first cache."""

MASKED = float("-inf")
"""Score of a key that a row may not see: its exponential is exactly 0."""

LOWEST = -1e30
"""Running maximum before any key was seen: finite, so that differences from it are numbers."""

TILE_LINES = 6
"""Lines of a register tile."""

_CONVERSION = 5
"""What it costs to convert a key or a value to f32 for all lines of a pass, in lines."""


@dataclass(frozen=True)
class Shape:
    """Static facts of one attention kernel; `heads` are the query heads of a KV head."""

    target: Target
    kv: KvLayout
    heads: int
    softcap: bool

    @property
    def lanes(self) -> int:
        """Lanes of a vector."""
        return self.target.lanes

    @property
    def sums(self) -> int:
        """Vectors of running sums that stay in registers beside the operands of their fma."""
        return self.target.registers - (8 if self.target.registers > 16 else 4)

    @property
    def tile_vectors(self) -> int:
        """Vectors of keys or values of a register tile: a power of two."""
        return self.fitting_vectors(TILE_LINES)

    def fitting_vectors(self, lines: int) -> int:
        """The largest power of two of vectors whose sums for `lines` lines stay in registers; at most a page."""
        vectors = 1
        while 2 * vectors * lines <= self.sums and 2 * vectors * self.lanes <= PAGE:
            vectors *= 2
        return vectors

    @property
    def pass_rows(self) -> int:
        """Rows of an attention tile that go through the cache together.

        More lines share each conversion; the register tile that is cut short at the end is wasted work.
        """
        most = max(1, (96 if self.kv.head_dim <= 128 else 48) // self.heads)
        return min(
            (n for n in range(1, most + 1) if ATTENTION_ROWS % n == 0),
            key=lambda n: (round_up(n * self.heads, TILE_LINES) + _CONVERSION) / (n * self.heads),
        )

    @property
    def pass_lines(self) -> int:
        """Lines of a pass, whole register tiles."""
        return round_up(self.pass_rows * self.heads, TILE_LINES)

    @property
    def lone_parts(self) -> list[range]:
        """The lines of a lone row in the fewest, most even parts whose sums stay in registers."""
        parts = -(-self.heads // self.sums)
        edges = [self.heads * i // parts for i in range(parts + 1)]
        return [range(a, b) for a, b in itertools.pairwise(edges)]

    @property
    def value_stretch(self) -> int:
        """Positions whose values are converted at a time, so that they lie in the first cache."""
        return PAGE if self.kv.value_dims <= 64 else PAGE // 2

    @property
    def query_bytes(self) -> int:
        """Bytes of a query."""
        return 4 * self.kv.head_dim

    @property
    def value_bytes(self) -> int:
        """Bytes of a padded value in f32."""
        return 4 * self.kv.value_dims


@dataclass(frozen=True)
class Partials:
    """What one block yields for some lines: maximum, sum of exponentials, weighted sum of values."""

    peaks: Ptr
    sums: Ptr
    values: Ptr

    @staticmethod
    def at(base: Ptr, lines: int) -> "Partials":
        """The partials of `lines` lines that lie at `base`."""
        column = 4 * round_up(lines, 16)
        return Partials(base, base + column, base + 2 * column)

    @staticmethod
    def choose(first: V, a: "Partials", b: "Partials") -> "Partials":
        """a where `first` holds, else b."""
        pairs = ((a.peaks, b.peaks), (a.sums, b.sums), (a.values, b.values))
        return Partials(*(choose(first, x, y) for x, y in pairs))


@dataclass(frozen=True)
class Scratch:
    """Stack memory of a call. Per line: query, scores (then weights), running sums; and stretches of the cache in f32.

    `newest` and `oldest` are the first and last position a line sees (i32), `factors` what the earlier and the new part
    of its sums are multiplied by.
    """

    queries: Ptr
    scores: Ptr
    keys: Ptr
    values: Ptr
    newest: Ptr
    oldest: Ptr
    factors: tuple[Ptr, Ptr]
    total: Partials
    block: Partials

    @staticmethod
    def allocate(shape: Shape) -> "Scratch":
        """Reserve it in the function's frame."""
        lines, column = shape.pass_lines, 4 * round_up(shape.pass_lines, 16)
        key_bytes = 4 * shape.kv.head_dim * max(KEY_GROUP, shape.tile_vectors * shape.lanes)
        return Scratch(
            queries=scratch(lines * shape.query_bytes), scores=scratch(lines * SCORE_ROW), keys=scratch(key_bytes),
            values=scratch(shape.value_stretch * shape.value_bytes), newest=scratch(column), oldest=scratch(column),
            factors=(scratch(column), scratch(column)),
            total=Partials.at(scratch(partial_bytes(shape.kv.head_dim, lines)), lines),
            block=Partials.at(scratch(partial_bytes(shape.kv.head_dim, lines)), lines),
        )  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """`count` rows of one slot at consecutive positions from `first` on, all query heads of one KV head.

    `queries` are the lines' queries, one after the other; those past the last line are zeros up to a whole register
    tile, and what is computed for them is thrown away. `cache` is the byte offset of the KV head inside a page.
    """

    count: V
    lines: V
    first: V
    queries: Ptr
    pages: Ptr
    cache: V
    reach: V
    """Keys a row sees, itself included; huge where there is no window."""

    @property
    def last(self) -> V:
        """Position of the last row."""
        return self.first + self.count - 1

    def oldest(self, row: V | int) -> V:
        """Oldest position that row `row` sees."""
        return maximum(self.first + row - self.reach + 1, i64(0))

    def head_of(self, position: V) -> Ptr:
        """Address of the KV head in the page of a position."""
        return page_of(self.pages, position) + self.cache


@dataclass(frozen=True)
class Block:
    """A stretch of KV_BLOCK absolute positions and the rows that walk it.

    It begins at `start`; [lo, hi) is the part that some row of the pass sees.
    """

    shape: Shape
    scratch: Scratch
    rows: Rows
    out: Partials
    start: V
    lo: V
    hi: V

    @staticmethod
    def of(shape: Shape, scratch: Scratch, rows: Rows, out: Partials, start: V) -> "Block":
        """The block that begins at `start`."""
        lo, hi = maximum(start, rows.oldest(0)), minimum(start + KV_BLOCK, rows.last + 1)
        return Block(shape, scratch, rows, out, start, lo, hi)

    def seen_by(self, row: V) -> V:
        """Whether row `row` sees any key of the block."""
        first = maximum(self.start, self.rows.oldest(row))
        return first < minimum(self.start + KV_BLOCK, self.rows.first + row + 1)

    def after_keys(self, position: V) -> Ptr:
        """What a lone row reads after the keys of a position's page: those of the next page, then the first values."""
        following = self.rows.head_of(minimum(position + PAGE, self.hi - 1))
        return choose(position + PAGE < self.hi, following, self.rows.head_of(self.lo) + self.shape.kv.values)

    def after_values(self, position: V) -> Ptr:
        """The same after values; after the last ones most likely the next KV head's keys of the same block."""
        kv, following = self.shape.kv, self.rows.head_of(minimum(position + PAGE, self.hi - 1))
        next_head = self.rows.head_of(self.lo) + kv.head_bytes
        return choose(position + PAGE < self.hi, following + kv.values, next_head)

    def column(self, position: V) -> V:
        """Byte offset of a position in a line of scores."""
        return (position - self.start) * 4


def copy_as_f32(shape: Shape, source: Ptr, out: Ptr, count: V | int) -> Ptr:
    """Convert `count` stored numbers, a multiple of 16, to f32 at `out`."""
    with for_(0, count, shape.lanes) as loop:
        (out + loop.iv * 4).store(shape.kv.load(source + loop.iv * shape.kv.width, shape.lanes), 4)
    return out


def whole_tiles(lines: V) -> V:
    """A number of lines, up to a whole register tile."""
    return (lines + (TILE_LINES - 1)) // i64(TILE_LINES) * TILE_LINES
