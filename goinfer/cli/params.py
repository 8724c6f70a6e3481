"""Options and arguments of commands as data: the parser for plain command lines reads them, and typer gets its own from
them (cli/dashes.py). Importing this costs nothing, which `goinfer run` starts with."""

from typing import Any


class Parameter:
    """One parameter of a command: its spellings, and settings (help, parser, min, ..) that typer takes as they are."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings


class Option(Parameter):
    """An option, such as `--threads 2`."""


class Argument(Parameter):
    """A value without a name."""
