"""MLIR for the graph: a context that knows the `giw` dialect, and what its declaration says about each op.

The dialect is declared once, in `giw.irdl.mlir`. MLIR enforces it (unknown and ill-typed ops are rejected
when a module is built or parsed), and `signatures()` reads the same file so that Python never repeats an
operand list.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from goinfer.codegen.mlir_context import load_mlir
from goinfer.compiler.ops import GraphError, TensorType

load_mlir()

from mlir import ir  # noqa: E402
from mlir._mlir_libs import _mlir  # noqa: E402
from mlir.dialects import irdl  # noqa: E402

_mlir.globals.append_dialect_search_prefix("goinfer.compiler")  # finds goinfer.compiler.giw

AttrValue = str | int | float | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]

PREFIX = "giw."
# MLIR finds the operand groups of an op with several optional operands through this attribute.
SEGMENTS = "operandSegmentSizes"


@dataclass(frozen=True)
class Signature:
    """What the declaration says about one op: operands (name, optional) in order, attributes name -> kind."""

    name: str
    operands: tuple[tuple[str, bool], ...]
    results: tuple[str, ...]
    attributes: Mapping[str, str]

    @property
    def segmented(self) -> bool:
        """True when MLIR needs explicit operand group sizes (two or more optional operands)."""
        return sum(optional for _, optional in self.operands) > 1


def _declaration() -> str:
    return (files("goinfer.compiler") / "giw.irdl.mlir").read_text()


def new_context() -> ir.Context:
    """A fresh MLIR context with the `giw` dialect loaded; contexts share nothing."""
    context = ir.Context()
    with context, ir.Location.unknown():
        irdl.load_dialects(ir.Module.parse(_declaration()))
    return context


@functools.cache
def signatures() -> Mapping[str, Signature]:
    """Op name (without `giw.`) -> its signature, read from the declaration."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(_declaration())
        (dialect,) = module.body.operations
        ops = [_signature(op.operation) for op in dialect.operation.regions[0].blocks[0].operations]
    return {signature.name: signature for signature in ops}


def _signature(op: ir.Operation) -> Signature:
    parts = {part.operation.name: part.operation for part in op.regions[0].blocks[0].operations}
    operands: tuple[tuple[str, bool], ...] = ()
    if "irdl.operands" in parts:
        group = parts["irdl.operands"]
        words = re.findall(r"single|optional|variadic", str(group.attributes["variadicity"]).split("[")[1])
        optional = [word == "optional" for word in words]
        operands = tuple(zip(_strings(group.attributes["names"]), optional, strict=True))
    results = _strings(parts["irdl.results"].attributes["names"]) if "irdl.results" in parts else ()
    declared = parts["irdl.attributes"]
    kinds = [str(ir.StringAttr(v.owner.attributes["base_name"]).value) for v in declared.operands]
    names = _strings(declared.attributes["attributeValueNames"])
    name = ir.StringAttr(op.attributes["sym_name"]).value
    return Signature(name, operands, results, dict(zip(names, kinds, strict=True)))


def _strings(attribute: Any) -> tuple[str, ...]:
    return tuple(ir.StringAttr(item).value for item in ir.ArrayAttr(attribute))


def to_attribute(kind: str, value: AttrValue) -> ir.Attribute:
    """Python value -> MLIR attribute of the declared kind. Needs a current context."""
    match kind, value:
        case "#builtin.string", str():
            return ir.StringAttr.get(value)
        case "#builtin.integer", bool():
            return ir.BoolAttr.get(value)
        case "#builtin.integer", int():
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        case "#builtin.float", float() | int():
            return ir.FloatAttr.get_f64(float(value))
        case "#builtin.array", tuple():
            return ir.ArrayAttr.get([ir.StringAttr.get(str(item)) for item in value])
        case "#builtin.dense_array", tuple():
            if all(isinstance(item, int) for item in value):
                return ir.DenseI64ArrayAttr.get(list(value))
            return ir.DenseF32ArrayAttr.get([float(item) for item in value])
    raise GraphError(f"attribute value {value!r} does not fit the declared kind {kind}")


def from_attribute(attribute: ir.Attribute) -> AttrValue:
    """MLIR attribute -> Python value; undoes to_attribute (integers are i64, floats f64, lists i64 or f32)."""
    match attribute:
        case ir.BoolAttr():
            return bool(attribute.value)
        case ir.StringAttr():
            return str(attribute.value)
        case ir.IntegerAttr() if str(attribute.type) == "i64":
            return int(attribute.value)
        case ir.FloatAttr() if str(attribute.type) == "f64":
            return float(attribute.value)
        case ir.ArrayAttr():
            return _strings(attribute)
        case ir.DenseI64ArrayAttr() | ir.DenseF32ArrayAttr():
            return tuple(attribute)
    raise GraphError(f"attribute {attribute} has a type the giw dialect does not use")


def to_type(tensor: TensorType) -> ir.Type:
    """TensorType -> MLIR ranked tensor; a None dimension is the dynamic number of rows."""
    dynamic = ir.ShapedType.get_dynamic_size()
    element = ir.F32Type.get() if tensor.dtype == "f32" else ir.IntegerType.get_signless(32)
    return ir.RankedTensorType.get([dynamic if d is None else d for d in tensor.shape], element)


def from_type(mlir_type: ir.Type) -> TensorType:
    """MLIR ranked tensor -> TensorType. Raises GraphError for any other element type than f32 and i32."""
    tensor = ir.RankedTensorType(mlir_type)
    dtype = str(tensor.element_type)
    if dtype not in ("f32", "i32"):
        raise GraphError(f"tensor type {mlir_type}: elements are f32 or i32 in a giw graph")
    shape = tuple(None if tensor.is_dynamic_dim(d) else tensor.get_dim_size(d) for d in range(tensor.rank))
    return TensorType(shape, dtype)
