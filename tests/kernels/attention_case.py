"""Builds and runs attention cases: queries at positions, a filled cache, the kernel, and the reference."""

from dataclasses import dataclass, field

import numpy as np

from goinfer.bundle_format.kernel_abi import KV_BLOCK, f32_row_bytes, partial_bytes, q8_row_bytes
from goinfer.codegen.reference_attention import Attention, CacheShape
from tests.kernels.harness import V4, Call, aligned, place, run
from tests.kernels.kv_pages import Pages

LANE_STRUCTURES = ("x86-64-v3", V4)
"""Targets of each vector width that can run here; attention takes no dot-product instruction."""

Tile = tuple[int, int] | tuple[int, int, int, int]


@dataclass
class Case:
    """One slot's keys, values and queries: `q` [rows, n_heads, head_dim] of the rows at `positions`."""

    shape: CacheShape
    q: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    positions: list[int]
    window: int = 0
    softcap: float = 0.0
    sinks: np.ndarray | None = None
    out: str = "f32"
    slot: int = 0
    read: tuple[np.ndarray, np.ndarray] = field(init=False)
    pages: Pages = field(init=False)

    def __post_init__(self) -> None:
        self.store(order_seed=0)

    def store(self, order_seed: int, slot: int = 0, n_slots: int = 1) -> None:
        """Put the keys and values up to the last query into fresh pages; positions after it stay poisoned."""
        last = max(self.positions)
        self.slot = slot
        self.pages = Pages.make(self.shape, n_slots, last // 64 + 2, order_seed)
        self.read = self.pages.fill(slot, self.keys[: last + 1], self.values[: last + 1])
        self.pages.table[slot, last // 64 + 1 :] = 0

    @property
    def n_heads(self) -> int:
        return self.q.shape[1]

    @property
    def row_bytes(self) -> int:
        width = self.n_heads * self.shape.head_dim
        return q8_row_bytes(width) if self.out == "q8" else f32_row_bytes(width)

    @property
    def partial_bytes(self) -> int:
        return self.shape.n_kv_heads * partial_bytes(self.shape.head_dim, self.n_heads // self.shape.n_kv_heads)

    def kernel(self, target: str, tiles: list[Tile], splits: list[int] | None = None) -> np.ndarray:
        """Output rows as bytes [rows, row_bytes] for the given attention tiles; (first row, rows) has all blocks."""
        n = len(self.positions)
        queries = aligned((n, self.n_heads * self.shape.head_dim + 16), np.float32)
        queries[:, :-16] = self.q.reshape(n, -1)
        out = aligned((n, self.row_bytes), np.uint8)
        attrs = {
            "head_dim": self.shape.head_dim, "n_heads": self.n_heads, "n_kv_heads": self.shape.n_kv_heads,
            "kv": self.shape.kv, "out": self.out, "softcap": self.softcap > 0, "sinks": self.sinks is not None,
        }  # fmt: skip
        whole = np.array([t if len(t) == 4 else (*t, -1, 0) for t in tiles], np.int32)
        records = max(int(block) + int(record) + 1 for _, _, block, record in whole)
        partials = aligned((max(1, records), self.partial_bytes + 64), np.uint8)
        counters = aligned((max(1, records), self.shape.n_kv_heads), np.int64, 0)
        pointers = [
            queries, out, self.pages.table, place(np.array(self.positions, np.int32)),
            place(np.full(n, self.slot, np.int32)), place(whole),
            None if self.sinks is None else place(self.sinks), partials, counters,
        ]  # fmt: skip
        ints = [
            queries.strides[0], self.row_bytes, self.shape.layer_offset, self.pages.table.shape[1], self.window,
            partials.strides[0],
        ]  # fmt: skip
        call = Call(
            "attention", attrs, pointers, ints, [self.softcap], rows=n, att_tiles=len(tiles), domain="att_tiles",
            units=self.shape.n_kv_heads,
        )  # fmt: skip
        run(call, target, splits)
        assert not counters.any(), "a counter of blocks was not put back to zero"
        return out

    def result(self, target: str, tiles: list[Tile] | None = None) -> np.ndarray:
        """The kernel's f32 output [rows, n_heads, head_dim]; tiles of 8 unless given. Checks the row padding."""
        raw = self.kernel(target, tiles or tiles_of(len(self.positions), 8))
        rows = raw.view(np.float32)
        width = self.n_heads * self.shape.head_dim
        assert not rows[:, width : -(-width // 32) * 32].any(), "padding of an output row is not zero"
        return rows[:, :width].reshape(self.q.shape)

    def expected(self) -> np.ndarray:
        """What the reference says, over the cache as it reads back."""
        meaning = Attention(self.window, self.softcap, self.sinks)
        return np.stack(
            [meaning.row(q, *self.read, position) for q, position in zip(self.q, self.positions, strict=True)]
        )


def tiles_of(rows: int, size: int) -> list[Tile]:
    """Attention tiles of `size` rows over consecutive rows."""
    return [(first, min(size, rows - first)) for first in range(0, rows, size)]


def split_tiles(positions: list[int]) -> list[Tile]:
    """For every row a tile for each block of its context."""
    tiles: list[Tile] = []
    for row, position in enumerate(positions):
        record = len(tiles)
        tiles += [(row, 1, block, record) for block in range(position // KV_BLOCK + 1)]
    return tiles


def random_case(
    head_dim: int, kv: str, n_heads: int, n_kv_heads: int, positions: list[int], *, seed: int = 0, **attrs: object
) -> Case:
    """Normal keys, values and queries; the queries scaled as a model scales them, times 3 for sharp weights."""
    rng = np.random.default_rng(seed)
    n = max(positions) + 1
    keys = rng.standard_normal((n, n_kv_heads, head_dim)).astype(np.float32)
    values = rng.standard_normal((n, n_kv_heads, head_dim)).astype(np.float32)
    q = 3 * rng.standard_normal((len(positions), n_heads, head_dim)).astype(np.float32) / np.float32(head_dim**0.5)
    shape = CacheShape(n_kv_heads, head_dim, kv, layer_offset=192)
    return Case(shape, q, keys, values, positions, **attrs)  # type: ignore[arg-type]
