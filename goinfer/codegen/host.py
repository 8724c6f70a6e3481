"""Functions compiled for this machine and called in this process: the compiler's own inner loops.

The same path as a bundle's kernels (MLIR, LLVM, flat image), in anonymous memory that is written first and only then
made executable.
"""

import ctypes
import mmap
import platform
from collections.abc import Callable
from typing import Any

from goinfer.codegen.errors import CompileError
from goinfer.codegen.image import CodeImage, link
from goinfer.codegen.mlir_context import CompilerMissing, load_mlir
from goinfer.codegen.target import TARGETS, Target

_LLVM_NAMES = {"sse4_2": "sse4.2", "avx_vnni": "avxvnni", "avx512_vnni": "avx512vnni", "asimd": "neon",
               "asimddp": "dotprod", "crc32": "crc", "fphp": "fullfp16", "asimdhp": "fullfp16"}  # fmt: skip
"""Linux' names of CPU features where LLVM has others."""


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
    from goinfer.codegen.emit_object import host_cpu_features

    features = host_cpu_features()
    return target.arch == platform.machine() and all(features.get(_LLVM_NAMES.get(n, n)) for n in target.needs)


def compile_for_host(define: Callable[[Any, Target], None], wanted: Target | None = None) -> HostCode | None:
    """The functions that `define(module, target)` adds to an MLIR module; None where this machine cannot run them.

    They are compiled for `wanted`, or else for the plainest target.
    """
    try:
        load_mlir()
        from goinfer.codegen.emit_object import emit_object
        from goinfer.codegen.lower_cpu import lower_to_llvm_ir

        target = host_target() if wanted is None else wanted if runs_here(wanted) else None
    except (CompilerMissing, ImportError):
        return None
    if target is None:
        return None
    from mlir import ir

    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        define(module, target)
        text = lower_to_llvm_ir(module, target)
    try:
        return HostCode(link({"host": emit_object(text, target)}))
    except CompileError:
        return None
