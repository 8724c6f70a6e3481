"""What our commands ask of typer: long options with one dash (`-quant int4` means `--quant int4`, for every option of
every command), parameters declared as in cli/params.py, and one way to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Annotated, Any

import typer
import typer.core

from goinfer.cli.params import Argument, Option


@dataclass
class Spelling:
    """The options of one command: long and short names (without dashes) -> whether a value follows."""

    long: dict[str, bool] = field(default_factory=dict)
    short: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, params: Sequence[Any], help_names: Sequence[str]) -> "Spelling":
        """Reads a command's parameters; arguments have no dashes and drop out."""
        spelling = cls()
        for param in params:
            takes_value = not (getattr(param, "is_flag", False) or getattr(param, "count", False))
            for name in [*param.opts, *param.secondary_opts]:
                spelling._add(name, takes_value)
        for name in help_names:
            spelling._add(name, False)
        return spelling

    def _add(self, name: str, takes_value: bool) -> None:
        if name.startswith("--"):
            self.long[name[2:]] = takes_value
        elif name.startswith("-"):
            self.short[name[1:]] = takes_value

    def value_follows(self, arg: str) -> bool:
        """Whether the argument after this (normalised) option is its value, whatever it looks like."""
        if arg.startswith("--"):
            return self.long.get(arg[2:], False)  # `--name=value` is not a name
        for at, letter in enumerate(arg[1:], 1):
            if self.short.get(letter, False):
                return at == len(arg) - 1  # else the rest of the argument is the value
        return False


def with_two_dashes(args: Sequence[str], spelling: Spelling, interspersed: bool = True) -> list[str]:
    """`args` with every one-dash long option spelled with two; values and what follows `--` stay as they are."""
    result: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--" or (not interspersed and not arg.startswith("-")):
            return [*result, arg, *rest]
        if len(arg) > 2 and arg[0] == "-" and arg[1] != "-" and arg[1:].partition("=")[0] in spelling.long:
            arg = f"-{arg}"
        result.append(arg)
        if rest and len(arg) > 1 and arg[0] == "-" and spelling.value_follows(arg):
            result.append(rest.pop(0))
    return result


class Command(typer.core.TyperCommand):
    """A command that takes its long options with one dash or two."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Normalise, then parse as usual."""
        spelling = Spelling.of(self.params, ctx.help_option_names)
        return super().parse_args(ctx, with_two_dashes(args, spelling))


class Group(typer.core.TyperGroup):
    """A group whose own options take one dash or two; what follows the command's name is left to the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Normalise, then parse as usual."""
        spelling = Spelling.of(self.params, ctx.help_option_names)
        return super().parse_args(ctx, with_two_dashes(args, spelling, interspersed=False))


def typed(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with its own parameters in typer's words."""

    @wraps(command)
    def call_it(**given: Any) -> None:
        command(**given)

    call_it.__annotations__ = {name: _in_words_of_typer(kind) for name, kind in command.__annotations__.items()}
    plain = signature(command)
    call_it.__signature__ = plain.replace(  # type: ignore[attr-defined]
        parameters=[p.replace(annotation=call_it.__annotations__[p.name]) for p in plain.parameters.values()]
    )
    return call_it


def _in_words_of_typer(kind: Any) -> Any:
    marks = getattr(kind, "__metadata__", ())
    if not marks or not isinstance(marks[0], Option | Argument):
        return kind
    make: Any = typer.Option if isinstance(marks[0], Option) else typer.Argument
    return Annotated[kind.__origin__, make(*marks[0].names, **marks[0].settings)]


def call(app: typer.Typer, name: str, args: Sequence[str] | None) -> int:
    """Run a command line through typer; the command's own exit code."""
    try:
        code = typer.main.get_command(app).main(args, prog_name=name, standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0
