"""Bundles for gates: through the public path, for the best target of this machine, in a temporary folder."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import goinfer
from goinfer.codegen.mlir_context import load_mlir
from goinfer.codegen.target import TARGETS
from goinfer.compiler.family import Family
from goinfer.gates.paths import CheckoutError
from goinfer.runtime.cpu import cpu_flags, usable


def machine_target() -> str:
    """The best default target that this machine runs. Raises CheckoutError where there is none."""
    table: dict[str, dict[str, object]] = {
        t.name: {"arch": t.arch, "needs": sorted(t.needs), "rank": t.baseline} for t in TARGETS.values()
    }
    found = usable(table, cpu_flags(), platform.machine())
    if not found:
        raise CheckoutError(f"gate: none of the targets {', '.join(TARGETS)} runs on this {platform.machine()}")
    return found[0]


@contextmanager
def loaded(source: Path, recipe: str = "f32", family: Family | None = None, **options: Any) -> Iterator[Any]:
    """A checkpoint compiled with a recipe and loaded; both the model and its file are gone afterwards.

    `family` takes the place of the registered one: how a gate is shown a broken build.
    """
    with TemporaryDirectory(prefix="goinfer-gate-") as folder:
        bundle = Path(folder) / "gate.giw"
        if family is None:
            goinfer.prequant(source, bundle, quant=recipe, targets=[machine_target()])
        else:
            load_mlir()
            compile_as(source, bundle, recipe, family)
        with goinfer.load(bundle, **options) as model:
            yield model


def compile_as(source: Path, bundle: Path, recipe: str, family: Family) -> None:
    """goinfer.prequant with a family of one's own."""
    from goinfer.compiler.checkpoints import open_checkpoint
    from goinfer.compiler.driver import compile_checkpoint

    compile_checkpoint(open_checkpoint(source), family, bundle, recipe, [machine_target()])
