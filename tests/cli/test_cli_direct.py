"""Plain command lines parsed without typer: the same values as typer's, or nothing."""

from inspect import signature
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from goinfer.cli import app
from goinfer.cli.direct import keywords
from goinfer.cli.run import run

TYPER: Any = typer.main.get_command(app.app).commands["run"]  # type: ignore[attr-defined]


def by_typer(args: list[str]) -> dict[str, Any]:
    return TYPER.make_context("run", list(args)).params


@pytest.mark.parametrize(
    "line",
    [
        "m.giw --raw -p x -n 1 --temp 0 --threads 2",
        "-p x m.giw",
        "m.giw -prompt x -temp 0.25 -json -stats",
        "m.giw --context 128 --kv f32 --target x86-64-v3 --verify off --seed 7",
        "m.giw",
    ],
)
def test_plain_lines_mean_what_they_mean_to_typer(line: str) -> None:
    """Red where a default, a type or a spelling is read otherwise: with numbers cut to whole ones."""
    mine = keywords(run, line.split())
    assert mine is not None
    want = by_typer(line.split())
    assert {**want, **mine} == want
    assert set(line.split()) & {"-p", "-prompt"} == set() or mine["prompt"] == "x"
    assert {type(mine[name]) for name in mine} == {type(want[name]) for name in mine}


@pytest.mark.parametrize(
    "line",
    [
        "", "--help", "m.giw --help", "m.giw other", "m.giw --unknown 1", "m.giw -p", "m.giw -p -x", "m.giw --prompt=x",
        "m.giw -n4", "m.giw -n x", "m.giw -n 1_0", "m.giw --temp nan", "m.giw --temp 1e3", "m.giw --threads 0",
        "m.giw --stop a", "m.giw --seed -1", "m.giw -p x -p y", "m.giw --raw --raw", "-- m.giw", "m.giw --version",
    ],
)  # fmt: skip
def test_the_rest_is_for_typer(line: str) -> None:
    """Among them what typer accepts too: being asked once too often costs time, a wrong guess an answer. Red without
    the check of minima, of repeated options, or of values that look like options."""
    assert keywords(run, line.split()) is None


def test_an_empty_path_is_for_typer() -> None:
    assert keywords(run, ["", "-p", "x"]) is None


WORDS = ("m.giw", "-p", "--prompt", "-raw", "--raw", "-n", "3", "0.5", "-1", "--temp", "--threads", "--", "--stop", "")


@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_whatever_it_takes_typer_takes_alike(args: list[str]) -> None:
    mine = keywords(run, args)
    if mine is not None:
        want = by_typer(args)
        assert {**want, **mine} == want
        defaults = {n: p.default for n, p in signature(run).parameters.items()}
        absent = {n: v or None if n == "stop" else v for n, v in want.items() if n not in mine}
        assert absent == {n: defaults[n] for n in absent}
