"""A paged KV cache for kernel tests: poisoned memory, pages at scattered addresses, null where released."""

from dataclasses import dataclass

import numpy as np

from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.codegen.reference_attention import CacheShape, read_position, write_position
from tests.kernels.harness import aligned


@dataclass
class Pages:
    """Memory of `n_slots` slots with `max_pages` pages each; every byte starts as 0xFF (NaN in f16, f32 and scales)."""

    shape: CacheShape
    memory: np.ndarray
    table: np.ndarray
    numbers: np.ndarray
    """[slots, max_pages]: which page of the memory a slot's page is."""

    @staticmethod
    def make(shape: CacheShape, n_slots: int, max_pages: int, order_seed: int = 0) -> "Pages":
        """All pages present, at addresses shuffled by the seed; 64 bytes of slack after a layer tell strides apart."""
        total = n_slots * max_pages
        memory = aligned((total, shape.layer_offset + shape.layer_bytes + 64), np.uint8, 0xFF)
        numbers = np.random.default_rng(order_seed).permutation(total).reshape(n_slots, max_pages)
        table = aligned((n_slots, max_pages), np.uint64, 0)
        table[...] = memory.ctypes.data + numbers * memory.strides[0]
        return Pages(shape, memory, table, numbers)

    def page(self, slot: int, position: int) -> np.ndarray:
        """Bytes of the page that holds a position."""
        return self.memory[self.numbers[slot, position // PAGE]]

    def write(self, slot: int, position: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Store one position the reference's way."""
        write_position(self.shape, self.page(slot, position), position % PAGE, keys, values)

    def fill(self, slot: int, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Store positions 0..n-1; returns them as a kernel reads them back."""
        for position in range(len(keys)):
            self.write(slot, position, keys[position], values[position])
        read = [read_position(self.shape, self.page(slot, p), p % PAGE) for p in range(len(keys))]
        return np.stack([k for k, _ in read]), np.stack([v for _, v in read])

    def release_below(self, slot: int, position: int) -> None:
        """Make every page wholly below a position null, as the runtime does once a window has passed."""
        self.table[slot, : position // PAGE] = 0
