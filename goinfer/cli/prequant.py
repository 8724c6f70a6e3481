"""`goinfer prequant`: a checkpoint becomes a bundle."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from goinfer.cli.options import Json, path, print_json, size

Report = Callable[[str, str, int, int], None]


def prequant(
    source: Annotated[
        Path, typer.Argument(parser=path, help="A .gguf file, or a directory with config.json and safetensors.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", parser=path,
            help="The bundle to write; default: the source's name and .giw, in the current directory.",
        ),
    ] = None,
    quant: Annotated[str, typer.Option("--quant", help="Recipe: f32, bf16, int8, int8int8, int4, int4all.")] = "int4",
    target: Annotated[
        list[str] | None, typer.Option("--target", help="Compile for this target; repeat for more. Default: all.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
    json: Json = False,
) -> None:
    """Compile a checkpoint into a bundle: quantised weights, machine code, tokenizer, chat template."""
    import goinfer

    where = out or _default_output(source)
    started = time.monotonic()
    with progress(quiet or json) as report:
        summary = goinfer.prequant(source, where, quant=quant, targets=target, progress=report)
    seconds = time.monotonic() - started
    if json:
        print_json({**_facts(summary), "seconds": round(seconds, 3)})
    elif not quiet:
        print("\n".join(_lines(summary, seconds)))


def _default_output(source: Path) -> Path:
    """The default output, named after the source."""
    name = source.stem if source.suffix == ".gguf" else os.path.basename(os.path.realpath(source))
    return Path(f"{name}.giw")


def _facts(summary: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(summary).items()}


def _lines(summary: Any, seconds: float) -> list[str]:
    rate = size(summary.source_bytes / max(seconds, 1e-9))
    lines = [
        f"{summary.path}: {summary.family}, {summary.recipe}, {summary.parameters / 1e6:.4g} M parameters",
        f"  source {size(summary.source_bytes)} -> bundle {size(summary.bundle_bytes)}"
        f" (weights {size(summary.weight_bytes)}, {summary.bits_per_weight:.2f} bits a weight)",
        f"  code for {', '.join(summary.targets)}",
        f"  {seconds:.1f} s, {rate}/s of source",
    ]
    if not summary.tokenizer:
        lines.append("  the source has no tokenizer: the bundle works with token ids only")
    return lines + [f"  {note}" for note in summary.notes]


@contextmanager
def progress(quiet: bool) -> Iterator[Report | None]:
    """A callback that draws one bar a phase on a terminal; None where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:8}"), BarColumn(24), TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rate]:>10}"), TimeElapsedColumn(), TextColumn("{task.fields[item]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=8) as bars:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, item: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total, rate="", item="")
            elapsed = bars.tasks[tasks[phase]].elapsed or 0.0
            counts_bytes = phase == "weights" and elapsed > 0.2
            rate = f"{size(done / elapsed)}/s" if counts_bytes else ""
            bars.update(tasks[phase], total=total, completed=done, rate=rate, item=item)

        yield report
