"""cos and sin of the rotary angles, grown by doubling as positions are reached.

Angles are position * inv_freq in float32 as transformers computes them; sin and cos are taken in float64 and rounded
once, then scaled in float32.
"""

import numpy as np

from goinfer.bundle_format.plan import RopeTable


class GrowingTable:
    """float32 [positions][2][half]: cos then sin of each position."""

    def __init__(self, table: RopeTable):
        self._inv_freq = np.asarray(table.inv_freq, np.float32)
        self._scale = np.float32(table.scale)
        self.values = self._rows(0, 256)

    def _rows(self, start: int, stop: int) -> np.ndarray:
        angles = np.arange(start, stop, dtype=np.float32)[:, None] * self._inv_freq
        wide = angles.astype(np.float64)
        out = np.empty((stop - start, 2, self._inv_freq.size), np.float32)
        out[:, 0] = np.cos(wide)
        out[:, 1] = np.sin(wide)
        out *= self._scale
        return out

    def reach(self, positions: int) -> bool:
        """Cover positions [0, positions); True if the table moved in memory."""
        have = len(self.values)
        if positions <= have:
            return False
        size = have
        while size < positions:
            size *= 2
        self.values = np.concatenate([self.values, self._rows(have, size)])
        return True
