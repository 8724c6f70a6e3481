"""Incremental detokenisation: characters leave as soon as they are complete, never in parts."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Set

_Utf8 = getincrementaldecoder("utf-8")


class StreamDecoder:
    """Texts of pushed tokens. All returned texts joined, `finish` included, are what decoding the ids at once
    gives; bytes that are not UTF-8 become U+FFFD in both."""

    def __init__(self, token_bytes: Callable[[int], bytes], skip: Set[int] = frozenset(), strip_left: int = 0) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        self._strip = strip_left
        self._utf8 = _Utf8("replace")

    def push(self, token: int) -> str:
        """The characters that this token completed; empty while a character is open."""
        data = self._token_bytes(token)
        return "" if token in self._skip else self._stripped(self._utf8.decode(data))

    def finish(self) -> str:
        """What an unfinished character at the end becomes. The stream can be used again afterwards."""
        rest = self._stripped(self._utf8.decode(b"", True))
        self._utf8.reset()
        return rest

    def _stripped(self, text: str) -> str:
        """Drop spaces at the very start of the output, as whole-text decoding does."""
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text
