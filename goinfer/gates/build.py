"""Bundles for gates: through the public path, for the best target of this machine, in a temporary folder."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import goinfer
from goinfer.codegen.target import TARGETS
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
def loaded(source: Path, recipe: str = "f32", **options: Any) -> Iterator[Any]:
    """A checkpoint compiled with a recipe and loaded; both the model and its file are gone afterwards."""
    with TemporaryDirectory(prefix="goinfer-gate-") as folder:
        bundle = Path(folder) / "gate.giw"
        goinfer.prequant(source, bundle, quant=recipe, targets=[machine_target()])
        with goinfer.load(bundle, **options) as model:
            yield model
