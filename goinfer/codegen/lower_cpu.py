"""MLIR to LLVM IR for CPU targets: the pass list, and the function attributes that keep an image self-contained."""

from typing import Any

from goinfer.codegen.errors import CompileError
from goinfer.codegen.target import Target

PIPELINE = (
    "builtin.module(canonicalize,cse,convert-scf-to-cf,convert-vector-to-llvm,expand-strided-metadata,lower-affine,"
    "convert-math-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,finalize-memref-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)


def lower_to_llvm_ir(module: Any, target: Target) -> str:
    """Run the pass list in place and translate. Raises CompileError with MLIR's diagnostic.

    "no-builtins" stops LLVM from turning loops into calls of memset and memcpy, which an image has not;
    "prefer-vector-width" lets a v4 kernel use whole 512-bit registers.
    """
    from mlir import ir
    from mlir.dialects import llvm
    from mlir.passmanager import PassManager

    try:
        module.operation.verify()
        PassManager.parse(PIPELINE).run(module.operation)
    except ir.MLIRError as e:
        raise CompileError(f"{target.name}: MLIR rejected the kernel: {' '.join(str(e).split())[:400]}") from e
    width = str(32 * target.lanes)
    passthrough = ir.ArrayAttr.get(
        [
            ir.StringAttr.get("no-builtins"),
            ir.StringAttr.get("nounwind"),
            ir.ArrayAttr.get([ir.StringAttr.get("prefer-vector-width"), ir.StringAttr.get(width)]),
        ]
    )
    for op in module.body.operations:
        if op.operation.name == "llvm.func":
            op.operation.attributes["passthrough"] = passthrough
    return str(llvm.translate_module_to_llvmir(module.operation))
