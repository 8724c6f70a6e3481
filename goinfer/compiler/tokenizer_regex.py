r"""Pre-tokenisation patterns (Oniguruma as the tokenizers library uses it) -> patterns over a small alphabet.

Python's `re` has no \p{L}. Instead of giant character classes, all code points that no pattern of a tokenizer can
tell apart share one class number, a text becomes a string of class numbers (one byte a character), and the pattern
is rewritten over those. Matching is the same, position by position, because a pattern only sees a character through
the sets it names.

Accepted: literals, escapes, \p{..} \P{..} \s \S, bracket classes without nesting, groups (?: (?i: (?= (?! (?> and
plain, alternation, greedy, lazy and possessive quantifiers. Anything else is refused by name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from goinfer.bundle_format.tokenizer_layout import CODE_POINT_BLOCKS
from goinfer.compiler import unicode_classes as uc
from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.unicode_classes import CodeSet

_CONTROL_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_FOLDS_TO_ASCII = {"s": "\u017f", "k": "\u212a"}  # the only non-ASCII characters that fold to one ASCII letter
_GROUPS = ("(?:", "(?i:", "(?=", "(?!", "(?>")
_NOT_LITERAL = "^$.{}"


@dataclass
class _Scanner:
    """One pass over a pattern. `parts` holds syntax as text and every character test as a code set."""

    pattern: str
    at: int = 0
    parts: list[str | CodeSet] = field(default_factory=list)
    ignore_case: list[bool] = field(default_factory=lambda: [False])

    def run(self) -> list[str | CodeSet]:
        while self.at < len(self.pattern):
            self._step()
        if len(self.ignore_case) != 1:
            raise self._refused("a group that is not closed")
        return self.parts

    def _refused(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"tokenizer: pattern {self.pattern!r} at {self.at}: {what} is not supported")

    def _take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def _step(self) -> None:
        ch = self.pattern[self.at]
        if ch == "(":
            self._open_group()
        elif ch == ")":
            if len(self.ignore_case) == 1:
                raise self._refused("a closing parenthesis without its group")
            self.at += 1
            self.ignore_case.pop()
            self.parts.append(")")
        elif ch == "|":
            self.at += 1
            self.parts.append("|")
        elif ch in "*+?" or (ch == "{" and self.parts):
            self._quantifier()
        elif ch == "[":
            self.parts.append(self._bracket())
        elif ch == "\\":
            self.parts.append(self._escape())
        elif ch in _NOT_LITERAL:
            raise self._refused(f"{ch!r}")
        else:
            self.at += 1
            self.parts.append(self._literal(ch))

    def _open_group(self) -> None:
        for opening in _GROUPS:
            if self._take(opening):
                self.ignore_case.append(self.ignore_case[-1] or opening == "(?i:")
                self.parts.append("(?:" if opening == "(?i:" else opening)
                return
        if self.pattern.startswith("(?", self.at):
            raise self._refused("this kind of group")
        self.at += 1
        self.ignore_case.append(self.ignore_case[-1])
        self.parts.append("(?:")

    def _quantifier(self) -> None:
        counted = re.compile(r"\{(\d+)?(,)?(\d+)?\}").match(self.pattern, self.at)
        if counted and (counted[1] or counted[3]):
            low, high = counted[1] or "0", counted[3] or ""
            self.parts.append(f"{{{low},{high}}}" if counted[2] else f"{{{low}}}")
            self.at = counted.end()
            if self.pattern.startswith("+", self.at) or (self.pattern.startswith("?", self.at) and not counted[2]):
                raise self._refused("a second quantifier")
            if self._take("?"):
                self.parts.append("?")
            return
        if self.pattern[self.at] == "{":
            raise self._refused("'{'")
        self.parts.append(self.pattern[self.at])
        self.at += 1
        if self.pattern[self.at : self.at + 1] in ("?", "+"):
            self.parts.append(self.pattern[self.at])
            self.at += 1

    def _literal(self, ch: str) -> CodeSet:
        if not self.ignore_case[-1] or not ch.isalpha():
            return uc.one_of(ch)
        if not ch.isascii():
            raise self._refused("a letter outside ASCII without case")
        return uc.one_of(ch.lower() + ch.upper() + _FOLDS_TO_ASCII.get(ch.lower(), ""))

    def _escape(self) -> CodeSet:
        """The set of one escape; `at` is on the backslash."""
        named = re.compile(r"\\([pP])\{(\^?)(\w+)\}").match(self.pattern, self.at)
        if named:
            self.at = named.end()
            members = uc.category(named[3])
            return ~members if (named[1] == "P") != bool(named[2]) else members
        coded = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}|\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})").match(
            self.pattern, self.at
        )
        if coded:
            self.at = coded.end()
            return self._literal(chr(int(coded[1] or coded[2] or coded[3], 16)))
        ch = self.pattern[self.at + 1 : self.at + 2]
        if ch in ("s", "S"):
            self.at += 2
            return uc.space() if ch == "s" else ~uc.space()
        if ch in _CONTROL_ESCAPES or (ch and not ch.isalnum()):
            self.at += 2
            return uc.one_of(_CONTROL_ESCAPES.get(ch, ch))
        raise self._refused(f"the escape \\{ch}")

    def _bracket(self) -> CodeSet:
        self.at += 1
        negated = self._take("^")
        members = np.zeros(uc.CODE_POINTS, dtype=bool)
        first = True
        while first or not self._take("]"):
            first = False
            if self.at >= len(self.pattern):
                raise self._refused("a bracket that is not closed")
            members |= self._bracket_item()
        return ~members if negated else members

    def _bracket_item(self) -> CodeSet:
        if self.pattern.startswith(("[", "&&"), self.at):
            raise self._refused("a class inside a class")
        start = self.at
        low = self._bracket_char()
        if self.pattern[self.at : self.at + 1] != "-" or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        high = self._bracket_char()
        if low.sum() != 1 or high.sum() != 1 or self.ignore_case[-1]:
            self.at = start
            raise self._refused("this range")
        return uc.span(int(low.argmax()), int(high.argmax()))

    def _bracket_char(self) -> CodeSet:
        if self.pattern[self.at] == "\\":
            return self._escape()
        self.at += 1
        return self._literal(self.pattern[self.at - 1])


@dataclass(frozen=True)
class CompiledPatterns:
    """Patterns over class bytes (ASCII text for `re.compile(p.encode())`) and the table of classes."""

    patterns: tuple[str, ...]
    class_index: np.ndarray  # u16 [CODE_POINT_BLOCKS]
    class_blocks: np.ndarray  # u8 [256 * n]


def compile_patterns(stages: Sequence[str | CodeSet]) -> CompiledPatterns:
    """Rewrite the stages of one pre-tokenizer over a common alphabet. A stage may be a bare set: one character."""
    scanned = [[stage] if isinstance(stage, np.ndarray) else _Scanner(stage).run() for stage in stages]
    sets = [part for parts in scanned for part in parts if isinstance(part, np.ndarray)]
    classes = _partition(sets)
    patterns = tuple(
        "".join(part if isinstance(part, str) else _class_text(classes, part) for part in parts) for parts in scanned
    )
    blocks, index = np.unique(classes.reshape(CODE_POINT_BLOCKS, 256), axis=0, return_inverse=True)
    return CompiledPatterns(patterns, index.reshape(-1).astype(np.uint16), blocks.reshape(-1))


def _partition(sets: Sequence[CodeSet]) -> np.ndarray:
    """u8 class of every code point: equal where all sets agree; numbered by first member."""
    edges = [np.flatnonzero(members[1:] != members[:-1]) + 1 for members in sets]
    starts = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *edges]))
    labels = np.zeros(len(starts), dtype=np.int64)
    for members in sets:  # on the runs between edges: a few thousand instead of a million code points
        labels = np.unique(labels * 2 + members[starts], return_inverse=True)[1].reshape(-1)
    if labels.max() > 255:
        raise UnsupportedError("tokenizer: the patterns tell more than 256 kinds of characters apart")
    _, first = np.unique(labels, return_index=True)
    order = np.argsort(np.argsort(first))
    return np.repeat(order[labels].astype(np.uint8), np.diff(starts, append=uc.CODE_POINTS))


def _class_text(classes: np.ndarray, members: CodeSet) -> str:
    """A bracket over class bytes; escapes, so that no class number is syntax."""
    chosen = np.unique(classes[members])
    return "[" + "".join(f"\\x{c:02x}" for c in chosen) + "]" if len(chosen) else "(?!)"
