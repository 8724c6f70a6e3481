"""Added tokens: matched whole in the text before anything else sees it, the longest at the leftmost place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from goinfer.bundle_format import tokenizer_layout as layout
from goinfer.runtime.tokenizer_match import LongestMatch

_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


@dataclass(frozen=True)
class Match:
    """`token` stands for text[start:end]."""

    start: int
    end: int
    token: int


class AddedTokens:
    """Those added tokens whose `normalized` flag is the one asked for."""

    def __init__(self, arrays: Mapping[str, memoryview], normalized: bool) -> None:
        wanted = layout.FLAG_NORMALIZED if normalized else 0
        rows = [
            (text, token, flags)
            for text, token, flags in zip(_texts(arrays), arrays["added_ids"], arrays["added_flags"], strict=True)
            if flags & layout.FLAG_NORMALIZED == wanted
        ]
        self.ids = {text: token for text, token, _ in rows}
        self._flags = {token: flags for _, token, flags in rows}
        self._matcher = LongestMatch(self.ids)

    def find(self, text: str, parse_special: bool, guard: str) -> list[Match]:
        """Matches in order, special ones only with `parse_special`. None starts right after a guard character.

        Where a match is not allowed its text stays text as a whole: nothing inside it is looked for.
        """
        found: list[Match] = []
        done = at = 0
        while hit := self._matcher.search(text, at):
            start, at = hit
            token = self.ids[text[start:at]]
            flags = self._flags[token]
            guarded = bool(guard) and start > 0 and text[start - 1] == guard
            if not guarded and (parse_special or not flags & layout.FLAG_SPECIAL):
                match = _widened(text, Match(start, at, token), flags, done)
                found.append(match)
                done = match.end
        return found


def _texts(arrays: Mapping[str, memoryview]) -> list[str]:
    raw = bytes(arrays["added_bytes"])
    spans = pairwise(arrays["added_offsets"].tolist())
    if raw.isascii():  # one decoding for all: vocabularies have thousands of these
        text = raw.decode("ascii")
        return [text[start:end] for start, end in spans]
    return [raw[start:end].decode("utf-8") for start, end in spans]


def _widened(text: str, match: Match, flags: int, done: int) -> Match:
    """The match with the whitespace that it takes along; what lies before `done` is taken already."""
    start, end = match.start, match.end
    if flags & layout.FLAG_LSTRIP and done < start:
        start = done + len(text[done:start].rstrip(_SPACE))
    if flags & layout.FLAG_RSTRIP:
        while end < len(text) and text[end] in _SPACE:
            end += 1
    return Match(start, end, match.token)


def cut(text: str, matches: list[Match]) -> Iterator[tuple[str | int, int]]:
    """Text between matches, and the matches' tokens, with where each starts; empty text is left out."""
    done = 0
    for match in matches:
        if match.start > done:
            yield text[done : match.start], done
        yield match.token, match.start
        done = match.end
    if done < len(text):
        yield text[done:], done
