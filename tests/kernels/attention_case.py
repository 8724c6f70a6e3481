"""Builds and runs attention cases: queries at positions, a filled cache, the kernel, and the reference."""

from dataclasses import dataclass, field

import numpy as np

from goinfer.bundle_format.kernel_abi import f32_row_bytes, q8_row_bytes
from goinfer.codegen.reference_attention import Attention, CacheShape
from tests.kernels.harness import Call, aligned, place, run
from tests.kernels.kv_pages import Pages


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

    def kernel(self, target: str, tiles: list[tuple[int, int]], splits: list[int] | None = None) -> np.ndarray:
        """Output rows as bytes [rows, row_bytes] for the given attention tiles."""
        n = len(self.positions)
        queries = aligned((n, self.n_heads * self.shape.head_dim + 16), np.float32)
        queries[:, :-16] = self.q.reshape(n, -1)
        out = aligned((n, self.row_bytes), np.uint8)
        attrs = {
            "head_dim": self.shape.head_dim, "n_heads": self.n_heads, "n_kv_heads": self.shape.n_kv_heads,
            "kv": self.shape.kv, "out": self.out, "softcap": self.softcap > 0, "sinks": self.sinks is not None,
        }  # fmt: skip
        pointers = [
            queries, out, self.pages.table, place(np.array(self.positions, np.int32)),
            place(np.full(n, self.slot, np.int32)), place(np.array(tiles, np.int32)),
            None if self.sinks is None else place(self.sinks),
        ]  # fmt: skip
        ints = [queries.strides[0], self.row_bytes, self.shape.layer_offset, self.pages.table.shape[1], self.window]
        call = Call(
            "attention", attrs, pointers, ints, [self.softcap], rows=n, att_tiles=len(tiles), domain="att_tiles",
            units=self.n_heads,
        )  # fmt: skip
        run(call, target, splits)
        return out

    def result(self, target: str, tiles: list[tuple[int, int]] | None = None) -> np.ndarray:
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


def tiles_of(rows: int, size: int) -> list[tuple[int, int]]:
    """Attention tiles of `size` rows over consecutive rows."""
    return [(first, min(size, rows - first)) for first in range(0, rows, size)]


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
