"""LLVM IR to a relocatable object, through llvmlite. The only place that imports it."""

from typing import Any

from goinfer.codegen.errors import CompileError
from goinfer.codegen.target import Target


def emit_object(llvm_ir: str, target: Target) -> bytes:
    """Optimise and emit position-independent code as an ELF object. Raises CompileError on invalid IR."""
    machine, module = _optimised(llvm_ir, target)
    return bytes(machine.emit_object(module))


def _optimised(llvm_ir: str, target: Target) -> tuple[Any, Any]:
    """O3 without auto-vectorisation: kernels are written as vectors, and a tail loop must stay a loop."""
    from llvmlite import binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )
    try:
        module = llvm.parse_assembly(llvm_ir)
    except RuntimeError as e:
        raise CompileError(f"{target.name}: LLVM rejected the IR: {' '.join(str(e).split())[:400]}") from e
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    module.verify()
    return machine, module
