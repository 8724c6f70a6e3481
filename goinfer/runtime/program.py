"""A plan bound to this process: arena allocated, addresses resolved, the step table filled."""

import mmap
from typing import Any

import numpy as np

from goinfer.bundle_format.kernel_abi import (
    ATTENTION_ROWS,
    ATTENTION_TILE_FIELDS,
    DOMAINS,
    KV_BLOCK,
    N_FLOATS,
    N_INTS,
    N_POINTERS,
    STEP,
    f32_row_bytes,
    round_up,
)
from goinfer.bundle_format.plan import Plan, Step
from goinfer.runtime.code_image import CodeImage
from goinfer.runtime.kv_cache import KVCache
from goinfer.runtime.rope_tables import GrowingTable

_SMALL_TILE = 8
"""Rows of an attention tile of a short run, so that there are enough tiles for all threads."""


class Program:
    """Step table, arena and input arrays of one engine.

    Memory: the arena (sum of the plan's bytes a row times max_rows), anonymous and touched only as far as used.
    """

    def __init__(self, plan: Plan, image: CodeImage, weights_base: int, cache: KVCache, kv: str, max_rows: int):
        self.plan = plan
        self.max_rows = max_rows
        self.cache = cache
        self._kv = kv
        self._image = image
        self._weights = {w.name: weights_base + w.offset for w in plan.weights}
        rows = {b.name: (b.row_offset, b.row_bytes) for b in plan.buffers}
        size = max((offset + n for offset, n in rows.values()), default=64) * max_rows
        self._arena = mmap.mmap(-1, round_up(size, mmap.PAGESIZE))
        self._arena_base = int(np.frombuffer(self._arena, np.uint8).ctypes.data)
        self._buffers = {name: self._arena_base + offset * max_rows for name, (offset, _) in rows.items()}
        self.ropes = {t.name: GrowingTable(t) for t in plan.rope_tables}
        counters = max_rows * max((n for g in plan.kv_groups for n in g.n_kv_heads), default=1)
        self.inputs: dict[str, np.ndarray] = {
            "tokens": np.zeros(max_rows, np.int32),
            "positions": np.zeros(max_rows, np.int32),
            "slots": np.zeros(max_rows, np.int32),
            "wanted": np.zeros(max_rows, np.int32),
            "att_tiles": np.zeros((2 * max_rows, ATTENTION_TILE_FIELDS), np.int32),
            "att_wanted": np.zeros((2 * max_rows, ATTENTION_TILE_FIELDS), np.int32),
            "att_counters": np.zeros(counters, np.int64),
            "greedy": np.zeros(max_rows, np.int32),
        }
        self.logits_stride = f32_row_bytes(plan.vocab)
        self._logits_uses: list[tuple[int, int]] = []
        self._choices_uses: list[tuple[int, int]] = []
        self._rope_uses: list[tuple[int, int, str]] = []
        # Whole records, not field by field: there are hundreds, and each assignment to a field costs a microsecond.
        self.steps = np.array([self._record(i, step) for i, step in enumerate(plan.steps)], STEP)

    def _record(self, i: int, step: Step) -> tuple[Any, ...]:
        """A step with its addresses, in the order of STEP's fields."""
        self._choices_uses += [(i, j) for j, value in enumerate(step.ints) if value == "choices"]
        return (
            self._image.address(step.kernel.replace("{kv}", self._kv)),
            _filled([self._address(operand, i, j) for j, operand in enumerate(step.operands)], N_POINTERS),
            _filled([self._integer(value) for value in step.ints], N_INTS),
            _filled(step.floats, N_FLOATS),
            DOMAINS.index(step.domain), step.row_tile, step.units, step.barrier, i,
        )  # fmt: skip

    def _address(self, operand: str, i: int, j: int) -> int:
        kind, _, name = operand.partition(":")
        if kind == "buf":
            return self._buffers[name]
        if kind == "weight":
            return self._weights[name]
        if kind == "pages":
            return int(next(p for p in self.cache.pools if p.group.name == name).table.ctypes.data)
        if kind == "rope":
            self._rope_uses.append((i, j, name))
            return int(self.ropes[name].values.ctypes.data)
        if operand == "io:logits":
            self._logits_uses.append((i, j))
            return 0
        return int(self.inputs[name].ctypes.data) if kind == "io" else 0

    def _integer(self, value: int | str) -> int:
        if isinstance(value, int):
            return value
        if value in ("max_pages", "choices"):
            return self.cache.max_pages if value == "max_pages" else self.plan.vocab
        layer = int(value.removeprefix("kv:"))
        return next(p.layer_offsets[layer] for p in self.cache.pools if layer in p.layer_offsets)

    def set_logits(self, address: int) -> None:
        """Where the head writes: rows of `logits_stride` bytes, one per wanted row."""
        for i, j in self._logits_uses:
            self.steps["ptr"][i, j] = address

    @property
    def greedy_wants_logits(self) -> bool:
        """Whether the plan finds greedy tokens in finished logits only."""
        return not any(step.domain == "greedy" for step in self.plan.steps)

    def set_choices(self, n: int) -> None:
        """How many ids, from 0 on, a greedy token is chosen from."""
        for i, j in self._choices_uses:
            self.steps["int"][i, j] = n

    def reach(self, positions: int) -> None:
        """Extend the rotary tables to cover positions [0, positions)."""
        for name, table in self.ropes.items():
            if table.reach(positions):
                for i, j, used in self._rope_uses:
                    if used == name:
                        self.steps["ptr"][i, j] = table.values.ctypes.data

    def rows_of(self, buffer: str, n: int, width: int) -> np.ndarray:
        """A copy of the first n rows of an f32 buffer, [n, width]."""
        stride = f32_row_bytes(width) // 4
        start = self._buffers[buffer] - self._arena_base
        flat = np.frombuffer(self._arena, np.float32, n * stride, start)
        return flat.reshape(n, stride)[:, :width].copy()

    def set_tiles(self, name: str, runs: list[tuple[int, int]]) -> int:
        """Attention tiles of runs (first row, rows) of one slot and consecutive positions; returns their number.

        `name` is the list to fill: "att_tiles" or "att_wanted".

        A lone row whose context has several blocks gets a tile for each, as long as there is room for their partials
        (max_rows blocks in all). Needs the rows' positions.
        """
        tiles, positions = self.inputs[name], self.inputs["positions"]
        n = used = 0
        for first, count in runs:
            blocks = int(positions[first]) // KV_BLOCK + 1
            if count == 1 and 1 < blocks <= self.max_rows - used:
                made = tiles[n : n + blocks]
                made[:] = (first, 1, 0, used)
                made[:, 2] = np.arange(blocks)
                used += blocks
            elif count == 1:
                made = tiles[n : n + 1]
                made[:] = (first, 1, -1, 0)
            else:
                size = ATTENTION_ROWS if count >= 8 * ATTENTION_ROWS else _SMALL_TILE
                starts = np.arange(first, first + count, size)
                made = tiles[n : n + len(starts)]
                made[:] = (0, 0, -1, 0)
                made[:, 0], made[:, 1] = starts, np.minimum(first + count - starts, size)
            n += len(made)
        return n


def _filled(values: list[Any], size: int) -> list[Any]:
    return values + [0] * (size - len(values))


def exports_of(manifest: dict[str, Any], target: str) -> dict[str, int]:
    """Entry points of a target's image, from the manifest."""
    return {str(k): int(v) for k, v in manifest["targets"][target]["exports"].items()}
