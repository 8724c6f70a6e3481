"""Text -> words, by the patterns of the section."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


class ClassSplitter:
    """The pre-tokenizer of a byte-level vocabulary: patterns over the class of every character."""

    def __init__(self, patterns: Sequence[str], arrays: Mapping[str, memoryview]) -> None:
        self._patterns = [re.compile(p.encode("ascii")) for p in patterns]
        self._index = np.frombuffer(arrays["class_index"], dtype=np.uint16)
        self._blocks = np.frombuffer(arrays["class_blocks"], dtype=np.uint8).reshape(-1, 256)
        self._latin = self._blocks[self._index[0]].tobytes()

    def words(self, text: str) -> list[str]:
        """The text in order, cut; nothing is lost."""
        spans = [(0, len(text))]
        if self._patterns:
            classes = self._classes(text)
            for pattern in self._patterns:
                spans = [cut for span in spans for cut in _isolate(pattern, classes, *span)]
        return [text[start:end] for start, end in spans]

    def _classes(self, text: str) -> bytes:
        if text.isascii():
            return text.encode("ascii").translate(self._latin)
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        return self._blocks[self._index[points >> 8], points & 255].tobytes()


def _isolate(pattern: re.Pattern[bytes], classes: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Matches inside the span, and what lies between them."""
    for match in pattern.finditer(classes, start, end):
        first, last = match.span()
        if first > start:
            yield start, first
        if last > first:
            yield first, last
        start = last
    if start < end:
        yield start, end


class SpaceSplitter:
    """Words of an spm vocabulary: cuts at spaces that change no token, so that words can be cached."""

    def __init__(self, pattern: str | None) -> None:
        self._find: Any = re.compile(pattern).findall if pattern else None

    def words(self, text: str) -> list[str]:
        """The text in order, cut; nothing is lost."""
        return self._find(text) if self._find else [text]
