"""`goinfer bench`: how fast a bundle is here, beside the machine's ceilings and beside its peers."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.output import Output
from goinfer.cli.dashes import Command
from goinfer.cli.options import Json, Target, path, print_json

SAME = "same"
"""As a peer's file: the GGUF that this run compiles its bundle from."""


def bench(
    model: Annotated[
        Path | None, typer.Argument(parser=path, help="A .giw bundle; default: the demo's model.", show_default=False)
    ] = None,
    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs", metavar="PEER MODEL.gguf", help="Beside llama.cpp or openvino; `same` is the bundle's own source."
        ),
    ] = None,
    synthetic: Annotated[
        str | None, typer.Option("--synthetic", help="Random weights of a shape: 135m, 0.5b, 1b, 3b or 7b.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measured rounds; one more is run first.")] = 5,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of every program.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Prefill 512 and decode at 16 only.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also show the time of every kind of step.")] = False,
    target: Target = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", parser=path, help="Write results as JSON here.")] = None,
    json: Json = False,
) -> None:
    """Measure prefill, decode, batches, start and memory in interleaved rounds; peers are said if they are absent."""
    from goinfer.bench import report, suite

    if model is not None and synthetic is not None:
        raise UsageError("--synthetic: makes its own model: give no bundle")
    peers = [_peer(given) for given in vs or []]
    if model is not None and any(str(file) == SAME for _, file in peers):
        raise UsageError(f"--vs: {SAME} is the file that this run compiles: give no bundle, or the peer's own file")
    place = None if out is None else Output(out, "results")
    if place is not None:
        place.check()  # before minutes of measuring
    with tempfile.TemporaryDirectory(prefix="goinfer-bench-") as folder:
        source = None
        if model is None:
            source = _source(Path(folder), synthetic)
            model = _compiled(source, Path(folder))
            peers = [(name, source if str(file) == SAME else file) for name, file in peers]
        request = suite.Request(model, threads, rounds, peers, source=source, target=target, profile=profile)
        if quick:
            request = replace(request, prefills=(512,), contexts=(16,), batches=())
        results = suite.run(request, lambda what: print(f"measuring {what} ..", file=sys.stderr))
    if place is not None:
        with place.replacing() as file:
            file.write(report.as_json(results).encode())
    print_json(report.data(results)) if json else print(report.text(results))


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


def _peer(given: str) -> tuple[str, Path]:
    from goinfer.bench.arms import check_peer

    name, _, file = given.partition("=")
    check_peer(name)
    if not file:
        raise UsageError(f"--vs {given}: needs the peer's file: --vs {name} MODEL.gguf")
    return name, Path(file)


def _source(folder: Path, synthetic: str | None) -> Path:
    if synthetic is None:
        from goinfer.cli.demo import checkpoint

        return checkpoint()
    from goinfer.bench.synthetic import shape_named, write_gguf

    shape = shape_named(synthetic)
    print(f"writing random weights of shape {synthetic} ..", file=sys.stderr)
    return write_gguf(folder / f"{synthetic}.gguf", shape)


def _compiled(source: Path, folder: Path) -> Path:
    import goinfer

    print(f"compiling {source.name} ..", file=sys.stderr)
    return goinfer.prequant(source, folder / f"{source.stem}.giw", quant="int4").path
