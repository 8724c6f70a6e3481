"""One dash or two, for every long option of every command."""

from typing import Any

import pytest
import typer

from goinfer.cli import app, serve_main
from goinfer.cli.dashes import Spelling, with_two_dashes

SPELLING = Spelling({"quant": True, "json": False, "n": True, "top-p": True}, {"n": True, "p": True, "q": False})


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("m -quant int4 -o x", "m --quant int4 -o x"),
        ("-quant=int4 m", "--quant=int4 m"),
        ("--quant int4", "--quant int4"),
        ("-json", "--json"),
        ("-p -json", "-p -json"),  # a value may look like an option
        ("--quant -json -json", "--quant -json --json"),
        ("-quant -quant", "--quant -quant"),
        ("-n 4 -n4", "-n 4 -n4"),
        ("-qn -json", "-qn -json"),
        ("-qn4 -json", "-qn4 --json"),
        ("-- -json", "-- -json"),
        ("-top-p 0.5", "--top-p 0.5"),
        ("-unknown", "-unknown"),
        ("-", "-"),
        ("--quant=x -json", "--quant=x --json"),
    ],
)
def test_rewriting(given: str, want: str) -> None:
    assert with_two_dashes(given.split(), SPELLING) == want.split()


def test_a_group_leaves_its_commands_alone() -> None:
    assert with_two_dashes(["-json", "run", "-json"], SPELLING, interspersed=False) == ["--json", "run", "-json"]


def commands() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("serve", typer.main.get_command(serve_main.app))]
    waiting = [("goinfer", typer.main.get_command(app.app))]
    while waiting:
        name, command = waiting.pop()
        found.append((name, command))
        waiting += [(f"{name} {sub}", inner) for sub, inner in getattr(command, "commands", {}).items()]
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_long_option_takes_one_dash(name: str, command: Any) -> None:
    context = typer.Context(command) if False else command.make_context(name, [], resilient_parsing=True)
    spelling = Spelling.of(command.params, context.help_option_names)
    assert "help" in spelling.long
    long = [o for p in command.params for o in [*p.opts, *p.secondary_opts] if o.startswith("--")]
    assert len(long) >= 1 or name.endswith("gate")
    for option in long:
        assert with_two_dashes([option[1:], "x"], spelling) == [option, "x"]
        assert with_two_dashes([f"{option[1:]}=x"], spelling) == [f"{option}=x"]


def test_both_spellings_parse_to_the_same() -> None:
    command = typer.main.get_command(app.app).commands["run"]
    two = ["m.giw", "--prompt", "x", "--temp", "0", "--top-p", "0.5", "--json", "--max-tokens", "3", "--raw"]
    one = [arg[1:] if arg.startswith("--") else arg for arg in two]
    assert command.make_context("run", list(one)).params == command.make_context("run", list(two)).params
