"""Plain command lines without typer, whose import and set-up cost more than opening a small model.

Both parsers read the same declarations (cli/params.py). This one takes what most command lines are: known options,
spelled out, each once, with values in their plainest form. All else, errors and --help among it, is left to typer.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any

from goinfer.cli.params import Argument, Option

_PLAIN = {int: re.compile(r"[0-9]{1,9}"), float: re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?"), str: re.compile("(?s).*")}


def keywords(command: Callable[..., None], args: Sequence[str]) -> dict[str, Any] | None:
    """What typer would call `command` with, less the defaults; None where typer has to look at `args` itself."""
    options, arguments = _parameters(command)
    found: dict[str, Any] = {}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, base, settings = options.get(word) or (arguments.pop(0) if arguments and _is_value(word) else _NOTHING)
        if base is bool and word in options:
            word = "yes"
        elif word in options:
            word = rest.pop(0) if rest else "-"
        value = _value(base, settings, word)
        if value is None or name in found:
            return None
        found[name] = value
    return None if arguments else found


_NOTHING: Any = ("", None, {})


def _parameters(command: Callable[..., None]) -> tuple[dict[str, Any], list[Any]]:
    """(name, type, settings) of a command's options by spelling, one dash or two, and of its arguments in order."""
    options: dict[str, Any] = {}
    arguments: list[Any] = []
    for name, annotation in command.__annotations__.items():
        for mark in getattr(annotation, "__metadata__", ()):
            entry = (name, _base(annotation.__origin__), mark.settings)
            if isinstance(mark, Argument):
                arguments.append(entry)
            elif isinstance(mark, Option):
                options.update((spelling, entry) for long in mark.names for spelling in {long, long.replace("--", "-")})
    return options, arguments


def _base(annotation: Any) -> Any:
    """The type of a value: T of `T | None`."""
    return annotation.__args__[0] if isinstance(annotation, UnionType) else annotation


def _value(base: Any, settings: dict[str, Any], word: str) -> Any:
    """The value that a word stands for, None if that is not plain to see."""
    if base is bool:
        return True
    if not _is_value(word):
        return None
    if base is Path:
        return settings["parser"](word) if word else None
    if base not in _PLAIN or not _PLAIN[base].fullmatch(word):
        return None
    value = base(word)
    return None if "min" in settings and value < settings["min"] else value


def _is_value(word: str) -> bool:
    return not word.startswith("-")
