"""One kernel or a whole program, from specification to object or image, in this process."""

import importlib
import pkgutil

from goinfer.bundle_format.plan import Kernel
from goinfer.codegen import kernels
from goinfer.codegen.emit_object import emit_assembly, emit_object
from goinfer.codegen.kernel import define_kernel
from goinfer.codegen.lower_cpu import lower_to_llvm_ir
from goinfer.codegen.target import Target


def load_builders() -> None:
    """Import every module of goinfer.codegen.kernels, so that all kinds are registered."""
    for module in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"{kernels.__name__}.{module.name}")


def kernel_llvm_ir(spec: Kernel, target: Target) -> str:
    """LLVM IR of one kernel: MLIR built, verified, lowered and translated."""
    from mlir import ir

    load_builders()
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        define_kernel(module, spec.symbol, spec.kind, spec.attrs, target)
        return lower_to_llvm_ir(module, target)


def compile_kernel(spec: Kernel, target: Target) -> bytes:
    """Object file of one kernel."""
    return emit_object(kernel_llvm_ir(spec, target), target)


def kernel_assembly(spec: Kernel, target: Target) -> str:
    """Assembly text of one kernel, for people."""
    return emit_assembly(kernel_llvm_ir(spec, target), target)
