"""Functions compiled for this machine and called in this process: the compiler's own inner loops.

The same path as a bundle's kernels (MLIR, LLVM, flat image), in anonymous memory that is written first and only then
made executable.
"""

import ctypes
import mmap
import platform
from collections.abc import Callable
from typing import Any

from goinfer.bundle_format.machine import cpu_flags
from goinfer.codegen import cache
from goinfer.codegen.errors import CompileError
from goinfer.codegen.image import CodeImage, link
from goinfer.codegen.mlir_context import CompilerMissing, load_mlir
from goinfer.codegen.target import TARGETS, Target


class HostCode:
    """Mapped functions. Keep it alive as long as one may run."""

    def __init__(self, image: CodeImage) -> None:
        self._map = mmap.mmap(-1, len(image.code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.write(image.code)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._exports = image.exports
        libc, size = ctypes.CDLL(None, use_errno=True), ctypes.c_size_t(len(image.code))
        if libc.mprotect(ctypes.c_void_p(self._base), size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            raise CompileError("this system allows no executable memory")

    def function(self, symbol: str, *args: Any) -> Any:
        """A ctypes callable without a result; the GIL is released while it runs."""
        return ctypes.CFUNCTYPE(None, *args)(self._base + self._exports[symbol])


def host_target() -> Target | None:
    """The plainest target of this machine's architecture, None if the machine lacks what it needs."""
    target = next((t for t in TARGETS.values() if t.arch == platform.machine()), None)
    return target if target is not None and runs_here(target) else None


def runs_here(target: Target) -> bool:
    """Whether this machine has the target's architecture and CPU features."""
    return target.arch == platform.machine() and set(target.needs) <= cpu_flags()


def compile_for_host(
    define: Callable[[Any, Target], None], key: str | None = None, wanted: Target | None = None
) -> HostCode | None:
    """The functions that `define(module, target)` adds to an MLIR module; None where this machine cannot run them.

    They are compiled for `wanted`, or else for the plainest target.
    key: covers what `define` does, in a word: code under the same key is taken from the cache.
    """
    target = host_target() if wanted is None else wanted if runs_here(wanted) else None
    if target is None:
        return None
    try:
        if key is None:
            return HostCode(_image(define, target))
        place = cache.key_of("host", cache.toolchain(), target.name, key)
        data = cache.remembered("host", place, lambda: _image(define, target).to_bytes())
        return HostCode(CodeImage.from_bytes(data))
    except (CompilerMissing, ImportError, CompileError):
        return None


def _image(define: Callable[[Any, Target], None], target: Target) -> CodeImage:
    load_mlir()
    from mlir import ir

    from goinfer.codegen.emit_object import emit_object
    from goinfer.codegen.lower_cpu import lower_to_llvm_ir

    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        define(module, target)
        text = lower_to_llvm_ir(module, target)
    return link({"host": emit_object(text, target)})
