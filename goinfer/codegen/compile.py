"""One kernel from specification to object, in this process."""

import importlib
import pkgutil

from goinfer.bundle_format.plan import Kernel
from goinfer.codegen import kernels as kernel_modules
from goinfer.codegen.driver import define_driver
from goinfer.codegen.emit_object import emit_object
from goinfer.codegen.kernel import define_kernel
from goinfer.codegen.lower_cpu import lower_to_llvm_ir
from goinfer.codegen.target import Target


def load_builder(kind: str) -> None:
    """Import the module that registers a kernel kind: the one of its name, else whichever module does."""
    names = [module.name for module in pkgutil.iter_modules(kernel_modules.__path__)]
    for name in [kind] if kind in names else names:
        importlib.import_module(f"{kernel_modules.__name__}.{name}")


def kernel_llvm_ir(spec: Kernel, target: Target) -> str:
    """LLVM IR of one kernel: MLIR built, verified, lowered and translated."""
    from mlir import ir

    load_builder(spec.kind)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        if spec.kind == "driver":
            define_driver(module, target)
        elif spec.kind == "crc32c":
            importlib.import_module("goinfer.codegen.kernels.crc32c").define(module, target)
        else:
            define_kernel(module, spec.symbol, spec.kind, spec.attrs, target)
        return lower_to_llvm_ir(module, target)


def compile_kernel(spec: Kernel, target: Target) -> bytes:
    """Object file of one kernel."""
    return emit_object(kernel_llvm_ir(spec, target), target)
