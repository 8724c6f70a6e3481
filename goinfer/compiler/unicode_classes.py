"""Code point sets of the pre-tokenisation patterns, from a committed table (tests/tokenizer/make_unicode_classes.py).

A set is a bool array over all code points. The table is that of the engine the released tokenizers run on, so the
same checkpoint compiles to the same section under every Python version.
"""

import json
from functools import cache
from importlib.resources import files

import numpy as np

from goinfer.compiler.errors import UnsupportedError

CODE_POINTS = 0x110000
CodeSet = np.ndarray  # bool [CODE_POINTS]


@cache
def _table() -> dict[str, object]:
    text = files("goinfer.compiler").joinpath("unicode_classes.json").read_text("ascii")
    data: dict[str, object] = json.loads(text)
    return data


@cache
def _categories() -> tuple[np.ndarray, tuple[str, ...]]:
    """Category number of every code point, and the categories' names."""
    rows = _table()["categories"]
    assert isinstance(rows, list)
    pairs = [run.split(":") for run in " ".join(rows).split(" ")]
    names = tuple(sorted({name for _, name in pairs}))
    starts = [int(start, 16) for start, _ in pairs] + [CODE_POINTS]
    numbers = np.array([names.index(name) for _, name in pairs], dtype=np.uint8)
    return np.repeat(numbers, np.diff(starts)), names


def _listed(key: str) -> CodeSet:
    chosen = np.zeros(CODE_POINTS, dtype=bool)
    chosen[[int(c, 16) for c in str(_table()[key]).split(" ")]] = True
    return chosen


def category(name: str) -> CodeSet:
    r"""Members of `\p{name}`: a general category ("Lu") or a group of them ("L")."""
    table, names = _categories()
    wanted = [i for i, known in enumerate(names) if known == name or known[0] == name]
    if not wanted:
        raise UnsupportedError(f"tokenizer: the pattern's class \\p{{{name}}} is not known")
    return np.isin(table, wanted)


def space() -> CodeSet:
    r"""Members of `\s`."""
    return _listed("space")


def numeric() -> CodeSet:
    """What the `Digits` pre-tokenizer calls a digit: a newer table than that of the patterns."""
    return category("N") | _listed("digits_only")


def span(first: int, last: int) -> CodeSet:
    """The code points from `first` to `last`, both included."""
    chosen = np.zeros(CODE_POINTS, dtype=bool)
    chosen[first : last + 1] = True
    return chosen


def one_of(text: str) -> CodeSet:
    """The characters of `text`."""
    chosen = np.zeros(CODE_POINTS, dtype=bool)
    chosen[[ord(ch) for ch in text]] = True
    return chosen
