"""The frame of a kernel: its registry, its function in an MLIR module, and typed access to the Step and Ctx records."""

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from goinfer.bundle_format import kernel_abi as abi
from goinfer.codegen.dsl import Ptr, V, for_, i64, ir
from goinfer.codegen.errors import CompileError
from goinfer.codegen.target import Target


@dataclass(frozen=True)
class Frame:
    """What a kernel builder sees: target, static attributes, and the arguments of the call."""

    target: Target
    attrs: dict[str, Any]
    step: Ptr
    ctx: Ptr
    thread: V
    tile0: V
    tile1: V

    def ptr(self, i: int) -> Ptr:
        """Operand i of the step."""
        return (self.step + (_offset(abi.STEP, "ptr") + 8 * i)).load_ptr()

    def int(self, i: builtins.int) -> V:
        """Integer i of the step, i64."""
        return (self.step + (_offset(abi.STEP, "int") + 8 * i)).load("i64", 8)

    def float(self, i: builtins.int) -> V:
        """Float i of the step, f32."""
        return (self.step + (_offset(abi.STEP, "float") + 4 * i)).load("f32", 4)

    def count(self, domain: str) -> V:
        """How many rows, wanted rows or attention tiles this forward has, i64."""
        return (self.ctx + (_offset(abi.CTX, "counts") + 8 * abi.DOMAINS.index(domain))).load("i64", 8)

    @property
    def units(self) -> V:
        """Units of the step (tiles of one row block), i64."""
        return (self.step + _offset(abi.STEP, "units")).load("i64", 8)

    @property
    def row_tile(self) -> V:
        """Rows of the step's domain that one tile covers, i64."""
        from goinfer.codegen.dsl import convert

        return convert((self.step + _offset(abi.STEP, "row_tile")).load("i32", 4), "i64")


Builder = Callable[[Frame], None]
_BUILDERS: dict[str, Builder] = {}


def _offset(dtype: Any, field: str) -> int:
    return int(dtype.fields[field][1])


def kernel(kind: str) -> Callable[[Builder], Builder]:
    """Register the builder of a kernel kind."""

    def register(build: Builder) -> Builder:
        _BUILDERS[kind] = build
        return build

    return register


def builder_of(kind: str) -> Builder:
    """The builder of a kind; raises CompileError for an unknown one."""
    if kind not in _BUILDERS:
        raise CompileError(f"kernel kind {kind!r} is unknown; known kinds: {', '.join(sorted(_BUILDERS))}")
    return _BUILDERS[kind]


def define_kernel(module: Any, symbol: str, kind: str, attrs: dict[str, Any], target: Target) -> None:
    """Add the function of one kernel to an MLIR module (inside its context)."""

    def body(step: Ptr, ctx: Ptr, thread: V, tile0: V, tile1: V) -> None:
        builder_of(kind)(Frame(target, attrs, step, ctx, thread, tile0, tile1))

    define_function(module, symbol, ("ptr", "ptr", "i32", "i64", "i64"), body)


def define_function(module: Any, symbol: str, params: tuple[str, ...], body: Callable[..., V | None],
                    result: str | None = None) -> None:  # fmt: skip
    """Add a function with pointer and scalar parameters; `body` gets them wrapped and may return a value."""
    from mlir.dialects import func

    from goinfer.codegen.dsl import ty

    with ir.InsertionPoint(module.body):
        signature = ir.FunctionType.get([ty(p) for p in params], [ty(result)] if result else [])
        op = func.FuncOp(symbol, signature)
        with ir.InsertionPoint(op.add_entry_block()):
            args = [
                Ptr(a) if p == "ptr" else V(a, p) for a, p in zip(op.arguments, params, strict=True)
            ]
            value = body(*args)
            func.ReturnOp([value.v] if value is not None else [])


def for_rows_of_tile(frame: Frame, domain: str, body: Callable[[V], None], row_tile: int = 1) -> None:
    """Call body(row) for every row that tiles [tile0, tile1) of a one-unit step cover."""
    from goinfer.codegen.dsl import minimum

    start = frame.tile0 * i64(row_tile)
    stop = minimum(frame.tile1 * i64(row_tile), frame.count(domain))
    with for_(start, stop) as loop:
        body(loop.iv)
