"""`goinfer gate`: the proofs. goinfer.gates measures and judges; this parses and prints."""

import sys
from typing import Annotated, Any

import typer

from goinfer.cli.dashes import Command, Group, typed
from goinfer.cli.options import Json, path, print_json

gate = typer.Typer(
    name="gate", cls=Group, rich_markup_mode=None, help="Prove that a bundle computes what its reference computes."
)

Families = Annotated[
    list[str] | None, typer.Option("--family", help="Only these, separated by commas or repeated; default: all.")
]


def names(given: list[str] | None) -> list[str] | None:
    """Family names from `a,b` and from repeated options."""
    if given is None:
        return None
    return [name.strip() for part in given for name in part.split(",") if name.strip()]


@gate.command(cls=Command)
@typed
def parity(
    family: Families = None,
    record: Annotated[bool, typer.Option("--record", help="Write the rows to testdata/parity_manifest.json.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Only the committed tiny checkpoints; needs no torch.")] = False,
    json: Json = False,
) -> None:
    """Compare bundles with Hugging Face on the same weights. Exit 1: something differs; 3: something was not run."""
    from goinfer.gates.parity import main_report

    _finish(main_report(names(family), record, tiny, _progress(json)), json)


@gate.command(cls=Command)
@typed
def fresh(family: Families = None, json: Json = False) -> None:
    """Check that the recorded rows still describe these sources."""
    from goinfer.gates.fresh import main_report

    _finish(main_report(names(family)), json)


@gate.command(cls=Command)
@typed
def quality(family: Families = None, json: Json = False) -> None:
    """Measure what quantised recipes cost in KL and argmax against f32."""
    from goinfer.gates.quality import main_report

    _finish(main_report(names(family)), json)


@gate.command(cls=Command)
@typed
def bisect(
    model: Annotated[str, typer.Argument(help="A checkpoint, or a tiny fixture such as llama/plain.")],
    ids: Annotated[str | None, typer.Option("--ids", help="Token ids as 1,2,3, or an .npz file.")] = None,
    bundle: Annotated[str | None, typer.Option("--bundle", help="Compare this bundle of the checkpoint.")] = None,
    json: Json = False,
) -> None:
    """Compare every layer with the reference and name the first one, and the first operation, that is off."""
    from goinfer.bundle_format.reader import refuse_bundle
    from goinfer.cli.logits import parse_ids
    from goinfer.gates.bisect import main_report

    for given in (model, *([] if bundle is None else [bundle])):
        path(given)
    refuse_bundle(model, "give its checkpoint, and the bundle with --bundle")
    _finish(main_report(model, None if ids is None else parse_ids(ids), bundle), json)


def _finish(outcome: tuple[str, dict[str, Any], int], json: bool) -> None:
    text, data, code = outcome
    print_json(data) if json else print(text)
    if code:
        raise typer.Exit(code)


def _progress(quiet: bool) -> Any:
    """Says on a terminal what is being measured."""
    if quiet or not sys.stderr.isatty():
        return None
    return lambda line: print(f"... {line}", file=sys.stderr, flush=True)
