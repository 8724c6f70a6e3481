"""`goinfer bench`: how fast a bundle is here, beside the machine's ceilings and beside its peers."""

import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.output import Output
from goinfer.cli.dashes import Command
from goinfer.cli.options import Json, Target, path, print_json

SAME = "same"
"""As a peer's file: the GGUF that this run compiles its bundle from."""


def bench(
    model: Annotated[
        Path | None,
        typer.Argument(
            parser=path, show_default=False, help="A .giw bundle, or a .gguf to compile; default: the demo's model."
        ),
    ] = None,
    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs", metavar="PEER MODEL.gguf",
            help="Beside llama.cpp or openvino; `same` is the bundle's own source."
            " Default except with a bundle: all that are installed.",
        ),
    ] = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Measure goinfer alone.")] = False,
    synthetic: Annotated[
        str | None, typer.Option("--synthetic", help="Random weights of a shape: 135m, 0.5b, 1b, 3b or 7b.")
    ] = None,
    requantise: Annotated[
        str | None,
        typer.Option("--requantise", metavar="q4_0", help="Let llama.cpp round the source to this type for all."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="A,B,..", help="Only decode and prefill, over shapes, and a line.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measured rounds; one more is run first.")] = 5,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of every program.")] = 2,
    quick: Annotated[
        bool, typer.Option("--quick", help="Prefill 512, decode at 16, start, open and memory only.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also show the time of every kind of step.")] = False,
    target: Target = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", parser=path, help="Write results as JSON here.")] = None,
    json: Json = False,
) -> None:
    """Measure prefill, decode, batches, start and memory in interleaved rounds, and judge the numbers to reach.

    Peers that are not installed are named. The demo's model and synthetic ones are compiled in a temporary folder.
    """
    _check(model, vs, no_peers, synthetic, requantise, sizes, quick, profile)
    place = None if out is None else Output(out, "results")
    if place is not None:
        place.check()  # before minutes of measuring
    if sizes is not None:
        from goinfer.bench import scaling

        found = scaling.run([name.strip() for name in sizes.split(",")], threads, rounds, target, _say)
        as_text: Callable[[Any], str] = scaling.text
    else:
        from goinfer.bench import report, suite

        as_text = report.text
        with tempfile.TemporaryDirectory(prefix="goinfer-bench-") as folder:
            request = _request(Path(folder), model, vs, no_peers, synthetic, requantise, threads, rounds)
            request = replace(request, target=target, profile=profile)
            if quick:
                request = replace(request, prefills=(512,), contexts=(16,), batches=())
                request = replace(request, lower_targets=False, prequant=False)
            found = report.data(suite.run(request, _say))
    _write(found, nullcontext() if place is None else place.replacing())
    print_json(found) if json else print(as_text(found))


class BenchCommand(Command):
    """Takes `--vs NAME FILE`, two values an option, which Typer has no type for: they become one, NAME=FILE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join, then parse as usual."""
        joined: list[str] = []
        rest = list(args)
        while rest:
            joined.append(rest.pop(0))
            if joined[-1] in ("--vs", "-vs") and len(rest) > 1 and "=" not in rest[0]:
                joined.append(f"{rest.pop(0)}={rest.pop(0)}")
        return super().parse_args(ctx, joined)


def _check(
    model: Path | None, vs: list[str] | None, no_peers: bool, synthetic: str | None, requantise: str | None,
    sizes: str | None, quick: bool, profile: bool,
) -> None:  # fmt: skip
    """Raise UsageError for options that do not go together."""
    from goinfer.bench.models import check_requantise
    from goinfer.bench.synthetic import shape_named

    if model is not None and synthetic is not None:
        raise UsageError("--synthetic: makes its own model: give no other")
    if _is_bundle(model) and requantise is not None:
        raise UsageError("--requantise: changes the source that this run compiles: give a .gguf, or nothing")
    if vs and no_peers:
        raise UsageError("--vs and --no-peers exclude each other: give one of them")
    if sizes is not None and (model or vs or synthetic or requantise or quick or profile):
        raise UsageError("--sizes: makes its own models and has no peers: give only --rounds, --threads, --target")
    if synthetic is not None:
        shape_named(synthetic)
    if requantise is not None:
        check_requantise(requantise)


def _request(
    folder: Path, model: Path | None, vs: list[str] | None, no_peers: bool, synthetic: str | None,
    requantise: str | None, threads: int, rounds: int,
) -> Any:  # fmt: skip
    """What to measure, with the model made where none was given."""
    from goinfer.bench import models, suite
    from goinfer.bench.arms import PEERS, why_absent

    given = [_peer(text) for text in vs or []]
    if model is not None and _is_bundle(model):
        if any(str(file) == SAME for _, file in given):
            raise UsageError(f"--vs: {SAME} is the file that this run compiles: give no bundle, or the peer's own file")
        return suite.Request(model, threads, rounds, given)
    absent: list[str] = []
    if not given and not no_peers:
        reasons = {name: why_absent(name) for name in PEERS}
        given = [(name, Path(SAME)) for name, reason in reasons.items() if reason is None]
        absent = [reason for reason in reasons.values() if reason is not None]
    source = _source(folder, model, synthetic)
    if requantise is not None:
        source = models.requantised(source, folder, requantise, threads, _say)
    bundle = models.compiled(source, folder, _say)
    peers = [(name, source if str(file) == SAME else file) for name, file in given]
    return suite.Request(bundle, threads, rounds, peers, absent, source=source, shape=synthetic)


def _peer(given: str) -> tuple[str, Path]:
    from goinfer.bench.arms import check_peer

    name, _, file = given.partition("=")
    check_peer(name, file, None if file == SAME else Path(file))
    return name, Path(file)


def _is_bundle(model: Path | None) -> bool:
    return model is not None and model.suffix != ".gguf"


def _source(folder: Path, model: Path | None, synthetic: str | None) -> Path:
    """The GGUF file that this run compiles: given, of random weights, or the demo's."""
    if model is not None:
        return model
    if synthetic is None:
        from goinfer.cli.demo import checkpoint

        return checkpoint()
    from goinfer.bench import models

    return models.synthetic(folder, synthetic, _say)


def _write(found: Any, place: AbstractContextManager[BinaryIO | None]) -> None:
    from goinfer.bench.report import as_json

    with place as file:
        if file is not None:
            file.write(as_json(found).encode())


def _say(what: str) -> None:
    print(f"{what} ..", file=sys.stderr)
