"""Byte-pair merging over the section's tables: best rank first, leftmost among equals."""

from bisect import bisect_left
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from goinfer.bundle_format.tokenizer_layout import NONE

_SHORT = 24  # symbols up to which a linear search for the best pair beats a heap
_MEMO_LIMIT = 1 << 16


class Merger:
    """The merge rules of one vocabulary. Lookups are remembered in a bounded table; safe to share among threads."""

    def __init__(self, arrays: Mapping[str, memoryview]) -> None:
        self._offsets = arrays["merge_offsets"]
        self._rights = arrays["merge_rights"]
        self._ranks = arrays["merge_ranks"]
        self._results = arrays["merge_results"]
        self._memo: dict[int, int] = {}

    def rank(self, left: int, right: int) -> int:
        """When the pair merges (smaller is earlier), or NONE."""
        key = left << 32 | right
        found = self._memo.get(key)
        if found is None:
            start, end = self._offsets[left], self._offsets[left + 1]
            at = bisect_left(self._rights, right, start, end)
            found = self._ranks[at] if at < end and self._rights[at] == right else NONE
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            self._memo[key] = found
        return found

    def merge(self, symbols: list[int]) -> list[int]:
        """`symbols` merged as far as the rules go; the list given is used up."""
        return self._merge_short(symbols) if len(symbols) <= _SHORT else self._merge_long(symbols)

    def _merge_short(self, symbols: list[int]) -> list[int]:
        rank, results = self.rank, self._results
        ranks = [rank(symbols[i], symbols[i + 1]) for i in range(len(symbols) - 1)]
        while ranks:
            best = min(ranks)
            if best == NONE:
                break
            i = ranks.index(best)
            symbols[i] = results[best]
            del symbols[i + 1], ranks[i]
            if i:
                ranks[i - 1] = rank(symbols[i - 1], symbols[i])
            if i < len(ranks):
                ranks[i] = rank(symbols[i], symbols[i + 1])
        return symbols

    def _merge_long(self, symbols: list[int]) -> list[int]:
        """The same with a heap and a linked list: n log n. A heap entry is stale once the pair at its place has
        another rank; places keep the index of their left symbol."""
        count = len(symbols)
        rank, results = self.rank, self._results
        after = list(range(1, count + 1))
        before = list(range(-1, count - 1))
        current = [rank(symbols[i], symbols[i + 1]) for i in range(count - 1)] + [NONE]
        heap = [r << 32 | i for i, r in enumerate(current) if r != NONE]
        heapify(heap)
        while heap:
            entry = heappop(heap)
            i = entry & 0xFFFFFFFF
            if current[i] != entry >> 32:
                continue
            gone = after[i]
            symbols[i] = results[current[i]]
            symbols[gone] = -1
            current[gone] = NONE
            after[i] = after[gone]
            if after[i] < count:
                before[after[i]] = i
            for left in (before[i], i):
                if left < 0:
                    continue
                right = after[left]
                current[left] = rank(symbols[left], symbols[right]) if right < count else NONE
                if current[left] != NONE:
                    heappush(heap, current[left] << 32 | left)
        return [s for s in symbols if s >= 0]
