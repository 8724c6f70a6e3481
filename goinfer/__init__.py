"""goinfer: an ahead-of-time compiler for language-model checkpoints, and the runtime of its bundles.

    goinfer.prequant("model.gguf", "m.giw", quant="int4")     # needs the compiler extra
    model = goinfer.load("m.giw")
    for piece in model.generate("Once upon a time"): print(piece.text, end="")
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goinfer.version import VERSION

if TYPE_CHECKING:
    from goinfer.compiler.driver import Summary
    from goinfer.runtime.model import Model

__version__ = VERSION

__all__ = ["Model", "__version__", "load", "prequant"]


def load(path: str | PathLike[str], **options: Any) -> "Model":
    """Open a bundle and make it ready to run.

    Options: threads, kv ("f32", "f16", "int8"), context, target, max_rows, slots, verify ("full", "background",
    "off"); see runtime/model.py. Raises BundleError for a damaged or unusable file.
    """
    from goinfer.runtime.model import Model

    return Model.open(path, **options)


def prequant(
    source: str | PathLike[str],
    out: str | PathLike[str],
    quant: str = "int4",
    targets: list[str] | None = None,
    progress: Callable[[str, str, int, int], None] | None = None,
) -> "Summary":
    """Compile a checkpoint (a GGUF file or a safetensors directory) into a bundle at `out`.

    `progress` is called with (phase, name, done, total). Raises UsageError for a request that cannot be met,
    CheckpointError or UnsupportedError naming what is wrong with the source; leaves no partial file behind, and never
    replaces a file of the source.
    """
    _check_request(source, out, quant, targets)
    from goinfer.codegen.mlir_context import llvm_library

    llvm_library()
    from goinfer.compiler.checkpoints import open_checkpoint
    from goinfer.compiler.driver import compile_checkpoint
    from goinfer.compiler.errors import full_name
    from goinfer.families.registry import family

    with full_name(source):
        checkpoint = open_checkpoint(source)
    found = family(checkpoint.architecture)
    return compile_checkpoint(checkpoint, found, Path(out), quant, targets, progress, stored_program=True)


def _check_request(
    source: str | PathLike[str], out: str | PathLike[str], quant: str, targets: list[str] | None
) -> None:
    """What can be wrong with a prequant before the checkpoint is opened; the cheap checks come first."""
    from goinfer.bundle_format.output import Output
    from goinfer.bundle_format.reader import refuse_bundle
    from goinfer.codegen.target import target_named
    from goinfer.compiler.checkpoints.overwrite import refuse_overwriting
    from goinfer.compiler.quant.recipes import recipe_named
    from goinfer.runtime.checks import file_path, text

    file_path("source", source, "a checkpoint")
    file_path("out", out, "the bundle to write")
    recipe_named(text("quant", quant))
    for target in targets or ():
        target_named(text("targets", target))
    refuse_bundle(source, "run it, or give the checkpoint that it was made from")
    refuse_overwriting(source, out)
    Output(out, "bundle").check()


def __getattr__(name: str) -> Any:
    """`goinfer.Model`, imported when first asked for: `import goinfer` itself stays cheap."""
    if name == "Model":
        from goinfer.runtime.model import Model

        return Model
    raise AttributeError(f"module 'goinfer' has no attribute {name!r}")
