"""Search for the longest of many fixed texts, leftmost first."""

import re
from collections.abc import Iterable


class LongestMatch:
    """A set of texts. A search looks only where a first character fits, then tries the lengths in use there."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        self._lengths: dict[str, list[int]] = {}
        for length, first in sorted({(len(text), text[0]) for text in self._texts}, reverse=True):
            self._lengths.setdefault(first, []).append(length)
        firsts = "".join(re.escape(ch) for ch in sorted(self._lengths))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def end(self, text: str, start: int) -> int:
        """Where the longest text that starts at `start` ends, or 0."""
        for length in self._lengths.get(text[start], ()):
            if text[start : start + length] in self._texts:
                return start + length
        return 0

    def search(self, text: str, at: int) -> tuple[int, int] | None:
        """The first match that starts at `at` or later: (start, end)."""
        while self._first is not None and (hit := self._first.search(text, at)):
            start = hit.start()
            end = self.end(text, start)
            if end:
                return start, end
            at = start + 1
        return None
