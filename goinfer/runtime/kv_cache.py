"""The paged KV cache: pages of 64 positions from a pool that grows as it is used; a slot is a table of pages.

A page holds the keys and values of every layer of one group (layers with the same window). Pages are reference
counted, so a fork shares them and copies only the page it is about to write. Layers with a window give pages back
once no future row can need them.
"""

import mmap

import numpy as np

from goinfer.bundle_format.errors import GoinferError
from goinfer.bundle_format.kernel_abi import PAGE, kv_head_bytes
from goinfer.bundle_format.plan import KVGroup


class SlotError(GoinferError):
    """A slot is closed, or cannot be taken back to the length asked for."""


class PagePool:
    """Pages of one group. Memory is anonymous, zeroed by the system, and never moves once handed out."""

    def __init__(self, group: KVGroup, dtype: str, slots: int, max_pages: int):
        self.group = group
        self.layer_offsets: dict[int, int] = {}
        size = 0
        for layer, heads, dim in zip(group.layers, group.n_kv_heads, group.head_dims, strict=True):
            self.layer_offsets[layer] = size
            size += heads * sum(kv_head_bytes(dim, dtype))
        self.page_bytes = size
        self.table = np.zeros((slots, max_pages), np.uint64)
        self._free: list[int] = []
        self._refs: dict[int, int] = {}
        self._chunks: list[mmap.mmap] = []
        self._next_chunk = 1

    @property
    def allocated_bytes(self) -> int:
        """Memory reserved so far."""
        return sum(len(c) for c in self._chunks)

    def _grow(self) -> None:
        chunk = mmap.mmap(-1, self._next_chunk * self.page_bytes)
        base = int(np.frombuffer(chunk, np.uint8).ctypes.data)
        self._chunks.append(chunk)
        self._free += [base + i * self.page_bytes for i in reversed(range(self._next_chunk))]
        self._next_chunk = min(2 * self._next_chunk, 16)

    def take(self) -> int:
        """Address of a page with one reference; its contents are whatever was there."""
        if not self._free:
            self._grow()
        page = self._free.pop()
        self._refs[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a reference."""
        self._refs[page] += 1

    def drop(self, page: int) -> None:
        """Take a reference away; the last one frees the page."""
        self._refs[page] -= 1
        if self._refs[page] == 0:
            del self._refs[page]
            self._free.append(page)

    def writable(self, slot: int, index: int) -> None:
        """Make page `index` of the slot exist and be its own, copying it if it is shared."""
        page = int(self.table[slot, index])
        if page == 0:
            self.table[slot, index] = self.take()
        elif self._refs[page] > 1:
            fresh = self.take()
            _bytes_at(fresh, self.page_bytes)[:] = _bytes_at(page, self.page_bytes)
            self.drop(page)
            self.table[slot, index] = fresh

    def release(self, slot: int, first: int, stop: int) -> None:
        """Give back the pages [first, stop) of a slot."""
        row = self.table[slot, first:stop]
        for page in row[row != 0]:
            self.drop(int(page))
        row[:] = 0


def _bytes_at(address: int, n: int) -> np.ndarray:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(address))


class KVCache:
    """All groups of a plan, and which slots are in use."""

    def __init__(self, groups: list[KVGroup], dtype: str, slots: int, context: int):
        self.context = context
        self.max_pages = -(-context // PAGE)
        self.pools = [PagePool(g, dtype, slots, self.max_pages) for g in groups]
        self._free = list(reversed(range(slots)))
        self.slots = slots

    def open(self) -> int:
        """Index of a free slot; raises SlotError when all are in use."""
        if not self._free:
            raise SlotError(f"all {self.slots} slots are in use; close one, or load the model with more slots")
        return self._free.pop()

    def close(self, slot: int) -> None:
        """Give back a slot and its pages."""
        for pool in self.pools:
            pool.release(slot, 0, self.max_pages)
        self._free.append(slot)

    def prepare(self, slot: int, start: int, stop: int) -> None:
        """Make the pages of positions [start, stop) writable."""
        for pool in self.pools:
            for index in range(start // PAGE, -(-stop // PAGE)):
                pool.writable(slot, index)

    def trim(self, slot: int, length: int) -> None:
        """Release pages no row at position >= length can need: a query at p sees keys k > p - window."""
        for pool in self.pools:
            if pool.group.window:
                oldest = length - pool.group.window + 1
                pool.release(slot, 0, max(0, oldest // PAGE))

    def truncate(self, slot: int, length: int) -> None:
        """Forget positions >= length."""
        for pool in self.pools:
            pool.release(slot, -(-length // PAGE), self.max_pages)

    def fork(self, slot: int) -> int:
        """A new slot that shares the pages of another."""
        copy = self.open()
        for pool in self.pools:
            row = pool.table[slot]
            for page in row[row != 0]:
                pool.share(int(page))
            pool.table[copy] = row
        return copy
