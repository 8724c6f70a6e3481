"""What arguments may be, checked once: Python calls, command lines and JSON requests all end here.

Each function returns the value as the plain Python type it stands for, or raises ArgumentError. The words suit people
who wrote JSON as well as people who wrote Python.
"""

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any

import numpy as np

from goinfer.runtime.errors import ArgumentError

_QUOTED = 40  # characters of a wrong value that a message repeats
_NOT_IDS = (str, bytes, bytearray, memoryview, Mapping, Set)


def number(name: str, value: Any, low: float, high: float) -> float:
    """A number in [low, high]; NaN is in no interval. True and False are no numbers."""
    if not _is(value, Real):
        raise ArgumentError(name, f"want a number from {low:g} to {high:g}, not {told(value)}")
    if not low <= value <= high:
        raise ArgumentError(name, f"{told(value)} is outside {low:g} to {high:g}")
    return float(value)


def whole(name: str, value: Any, low: int, high: int) -> int:
    """An integer in [low, high]; 3.0 is none."""
    if not _is(value, Integral):
        raise ArgumentError(name, f"want a whole number from {low} to {high}, not {told(value)}")
    if not low <= value <= high:
        raise ArgumentError(name, f"{told(value)} is outside {low} to {high}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """True or false, and nothing that only counts as such."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, f"want true or false, not {told(value)}")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A string with a UTF-8 form. Half a surrogate pair has none: it comes from broken JSON escapes, and from bytes
    on a command line that were no UTF-8."""
    if not isinstance(value, str):
        raise ArgumentError(name, f"want a string, not {told(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            where = f"U+{ord(value[error.start]):04X} at index {error.start}"
            raise ArgumentError(name, f"holds half a surrogate pair ({where}): give valid Unicode text") from None
    return value


def prompt_text(name: str, value: Any) -> str:
    """Text to continue or to answer: not empty."""
    if text(name, value):
        return value
    raise ArgumentError(name, "is empty: give at least one character")


def file_path(name: str, value: Any, what: str) -> None:
    """The path of `what`: a string or a path object, not empty."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ArgumentError(name, f"want the path of {what}, not {told(value)}")
    if not os.fspath(value):
        raise ArgumentError(name, f"is empty: give the path of {what}")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One non-empty string, or a list of them."""
    if isinstance(value, str):
        value = (value,)
        names = [name]
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        names = [f"{name}[{i}]" for i in range(len(value))]
    else:
        raise ArgumentError(name, f"want a string or a list of strings, not {told(value)}")
    for label, item in zip(names, value, strict=True):
        if not text(label, item):
            raise ArgumentError(label, "is empty: give at least one character")
    return tuple(value)


def token_ids(name: str, value: Any) -> list[int]:
    """A flat list of integers; whether the vocabulary has them is the caller's to check."""
    if isinstance(value, _NOT_IDS) or not isinstance(value, Iterable):
        raise ArgumentError(name, f"want a list of token ids, not {told(value)}")
    ids = list(value)
    for i, token in enumerate(ids):
        if type(token) is not int:
            if not _is(token, Integral):
                raise ArgumentError(f"{name}[{i}]", f"want a token id, a whole number, not {told(token)}")
            ids[i] = int(token)
    return ids


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def told(value: Any) -> str:
    """A wrong value in a message: short ones as they are, others by their type."""
    if isinstance(value, int) and value.bit_length() > 128:  # longer ones may not even have a repr
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float | str):
        quoted = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
        return quoted if len(quoted) <= _QUOTED else f"{quoted[:_QUOTED]}..."
    if isinstance(value, np.generic):
        return str(value)[:_QUOTED]
    return f"a value of type {type(value).__name__}"
