"""The model graph: an MLIR module of `giw` ops, a builder with shape inference, and a plain Python view.

A graph is one flat block in execution order: facts (model, rope_table, kv_cache), then params and compute
ops. Families use GraphBuilder, passes use Graph, and everything behind the passes (lowering, interpreter,
inspect) reads the GraphView, which holds no MLIR object.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from goinfer.compiler.graph_view import GraphOp, GraphView, KvLayer, ModelInfo, Param, view_of
from goinfer.compiler.ir import (
    PREFIX,
    SEGMENTS,
    AttrValue,
    from_attribute,
    from_type,
    ir,
    new_context,
    signatures,
    to_attribute,
    to_type,
)
from goinfer.compiler.ops import OPS, GraphError, TensorType
from goinfer.compiler.reference import RopeTable

__all__ = [
    "Graph",
    "GraphBuilder",
    "GraphOp",
    "GraphView",
    "KvLayer",
    "ModelInfo",
    "Operation",
    "Param",
    "RopeTable",
    "Value",
    "attrs_of",
    "op_name",
    "operands_of",
    "width",
]

Value: TypeAlias = ir.Value
Operation: TypeAlias = ir.Operation


class Graph:
    """An MLIR module of `giw` ops and the context it lives in. Passes change it in place."""

    def __init__(self, context: ir.Context, module: ir.Module):
        self.context = context
        self.module = module

    @classmethod
    def new(cls) -> "Graph":
        """An empty graph in a fresh context."""
        context = new_context()
        with context, ir.Location.unknown():
            return cls(context, ir.Module.create())

    @classmethod
    def parse(cls, text: str) -> "Graph":
        """The graph of a printed text. Raises GraphError unless it is a module of known, well-typed ops."""
        context = new_context()
        with context, ir.Location.unknown():
            try:
                return cls(context, ir.Module.parse(text))
            except ir.MLIRError as error:
                raise GraphError("graph text: " + " ".join(str(error).split())) from None

    def text(self) -> str:
        """The MLIR text; Graph.parse reads it back to an equal graph."""
        return str(self.module)

    def operations(self, *names: str) -> list[Operation]:
        """The ops in order, or those with one of the given names (without `giw.`); safe while rewriting."""
        ops = [op.operation for op in self.module.body.operations]
        return [op for op in ops if not names or op.name.removeprefix(PREFIX) in names]

    def emit(
        self,
        name: str,
        operands: Mapping[str, Value | None],
        attrs: Mapping[str, AttrValue],
        *,
        before: Operation | None = None,
        type_: TensorType | None = None,
    ) -> tuple[Value, ...]:
        """Append an op (or put it before another one) and return its results, their types inferred.

        `type_` is for params alone. Raises GraphError naming the op when operands, attributes or shapes do
        not fit.
        """
        with self.context, ir.Location.unknown():
            types = (type_,) if type_ else _infer(name, operands, attrs)
            signature = signatures()[name]
            if set(attrs) != set(signature.attributes):
                declared = sorted(signature.attributes)
                raise GraphError(f"{name}: attributes {sorted(attrs)}, declared {declared}")
            given = [operands.get(operand) for operand, _ in signature.operands]
            attributes = {key: to_attribute(signature.attributes[key], value) for key, value in attrs.items()}
            if signature.segmented:
                attributes[SEGMENTS] = ir.DenseI32ArrayAttr.get([int(v is not None) for v in given])
            where = ir.InsertionPoint(before) if before else ir.InsertionPoint(self.module.body)
            op = ir.Operation.create(
                PREFIX + name,
                results=[to_type(t) for t in types],
                operands=[value for value in given if value is not None],
                attributes=attributes,
                ip=where,
            )
            return tuple(op.results)

    def plain_ops(self) -> tuple[list[GraphOp], list[TensorType]]:
        """Every op in plain Python, and the type of each value id."""
        ids: dict[Value, int] = {}
        types: list[TensorType] = []
        ops = []
        for op in self.operations():
            operands = {name: ids[value] for name, value in operands_of(op).items()}
            for result in op.results:
                ids[result] = len(types)
                types.append(from_type(result.type))
            ops.append(GraphOp(op_name(op), operands, tuple(ids[r] for r in op.results), attrs_of(op)))
        return ops, types

    def view(self) -> GraphView:
        """The plain view of the whole graph. Raises GraphError without exactly one `model` op."""
        return view_of(*self.plain_ops())


def op_name(op: Operation) -> str:
    """The op's name without `giw.`."""
    return str(op.name).removeprefix(PREFIX)


def attrs_of(op: Operation) -> dict[str, Any]:
    """The op's attributes as Python values."""
    return {key: from_attribute(op.attributes[key]) for key in op.attributes if key != SEGMENTS}


def operands_of(op: Operation) -> dict[str, Value]:
    """The op's operands by declared name; an absent optional operand has no entry."""
    signature = signatures().get(op_name(op))
    if signature is None:
        raise GraphError(f"{op.name}: not an op of the giw dialect")
    values: Iterator[Value] = iter(op.operands)
    if signature.segmented:
        present = [bool(n) for n in ir.DenseI32ArrayAttr(op.attributes[SEGMENTS])]
    else:
        missing = len(signature.operands) - len(op.operands)
        present = [not (optional and missing) for _, optional in signature.operands]
    return {name: next(values) for (name, _), there in zip(signature.operands, present, strict=True) if there}


def _infer(name: str, operands: Mapping[str, Value | None], attrs: Mapping[str, AttrValue]) -> tuple[TensorType, ...]:
    shapes = {key: from_type(value.type) for key, value in operands.items() if value is not None}
    try:
        return OPS[name].infer(attrs, shapes)
    except GraphError as error:
        raise GraphError(f"{name} {attrs.get('label', '')}: {error}") from None


class GraphBuilder:
    """Builds the model stage of a graph, op by op; what families and their blocks are written against.

    Weight arguments are names of graph parameters; a parameter comes into being at its first use, and a
    second use under the same name shares it (a tied head). Labels must be unique; those of ops with a weight
    follow its name.
    """

    def __init__(self) -> None:
        self.graph = Graph.new()
        self._params: dict[str, Value] = {}

    def model(self, info: ModelInfo) -> None:
        """State the model's facts; once, first."""
        self.graph.emit("model", {}, vars(info))

    def rope_table(self, name: str, table: RopeTable) -> None:
        """Declare a rope table."""
        self.graph.emit("rope_table", {}, {"name": name, **vars(table)})

    def kv_cache(self, layer: int, state: KvLayer) -> None:
        """Declare the state of a layer."""
        self.graph.emit("kv_cache", {}, {"layer": layer, **vars(state)})

    def param(self, name: str, shape: tuple[int, ...], role: str) -> Value:
        """The parameter of that name, declared if it is new. Raises GraphError when the shape changed."""
        if name not in self._params:
            attrs: dict[str, AttrValue] = {"name": name, "role": role, "parts": (name,), "rows": (shape[0],)}
            (self._params[name],) = self.graph.emit("param", {}, attrs, type_=TensorType(shape))
        value = self._params[name]
        if from_type(value.type) != TensorType(shape):
            raise GraphError(f"param {name}: used as {TensorType(shape)} and as {from_type(value.type)}")
        return value

    def _one(self, name: str, label: str, operands: Mapping[str, Value | None], **attrs: AttrValue) -> Value:
        (result,) = self.graph.emit(name, operands, {"label": label, **attrs})
        return result

    def token_ids(self) -> Value:
        """The input: one token id a row."""
        return self._one("token_ids", "token_ids", {})

    def embed(self, ids: Value, weight: str, vocab: int, hidden: int, scale: float = 1.0) -> Value:
        """Embedding lookup, times scale."""
        table = self.param(weight, (vocab, hidden), "embed")
        return self._one("embed", _stem(weight), {"ids": ids, "weight": table}, scale=scale)

    def linear(self, x: Value, stem: str, n: int, role: str, bias: bool = False) -> Value:
        """Matrix product with `<stem>.weight` [n, width of x], plus `<stem>.bias` if asked."""
        weight = self.param(f"{stem}.weight", (n, width(x)), role)
        addend = self.param(f"{stem}.bias", (n,), "bias") if bias else None
        return self._one("linear", stem, {"x": x, "weight": weight, "bias": addend})

    def rms_norm(self, x: Value, weight: str, eps: float, size: int | None = None) -> Value:
        """RMS norm of each run of `size` elements (default: the whole row)."""
        size = size or width(x)
        scale = self.param(weight, (size,), "norm")
        return self._one("rms_norm", _stem(weight), {"x": x, "weight": scale}, eps=eps, size=size)

    def rope(self, x: Value, label: str, table: str, head_dim: int, interleaved: bool = False) -> Value:
        """Rotate every head of x by its row's position."""
        return self._one("rope", label, {"x": x}, table=table, head_dim=head_dim, interleaved=interleaved)

    def kv_write(self, k: Value, v: Value, label: str, layer: int) -> None:
        """Store the rows' keys and values in the layer's state."""
        self.graph.emit("kv_write", {"k": k, "v": v}, {"label": label, "layer": layer})

    def attention(
        self,
        q: Value,
        label: str,
        *,
        layer: int,
        n_heads: int,
        state: KvLayer,
        scale: float,
        softcap: float = 0.0,
        sinks: Value | None = None,
    ) -> Value:
        """Causal attention of q over the state of `layer` (which need not be the caller's own layer)."""
        facts = {"layer": layer, "n_heads": n_heads, **vars(state), "scale": scale, "softcap": softcap}
        return self._one("attention", label, {"q": q, "sinks": sinks}, **facts)

    def slice(self, x: Value, label: str, start: int, size: int) -> Value:
        """Columns start .. start + size of x."""
        return self._one("slice", label, {"x": x}, start=start, size=size)

    def act(self, x: Value, label: str, fn: str) -> Value:
        """Element-wise activation; `fn` is one of reference.ACTIVATIONS."""
        return self._one("act", label, {"x": x}, fn=fn)

    def mul(self, x: Value, y: Value, label: str) -> Value:
        """Element-wise product."""
        return self._one("mul", label, {"x": x, "y": y})

    def add(self, x: Value, y: Value, label: str) -> Value:
        """Element-wise sum; x is the residual stream and y the branch."""
        return self._one("add", label, {"x": x, "y": y})

    def scale(self, x: Value, label: str, factor: float) -> Value:
        """x times a constant."""
        return self._one("scale", label, {"x": x}, factor=factor)

    def softcap(self, x: Value, label: str, cap: float) -> Value:
        """cap * tanh(x / cap)."""
        return self._one("softcap", label, {"x": x}, cap=cap)

    def hidden(self, x: Value, index: int) -> None:
        """Mark x as hidden state `index`: 0 the embedding, then each layer, n_layers + 1 the final norm."""
        self.graph.emit("hidden", {"x": x}, {"label": f"hidden.{index}", "index": index})

    def logits(self, x: Value, weight: str, vocab: int, scale: float = 1.0, softcap: float = 0.0) -> None:
        """The head and the graph's output; naming the embedding's parameter ties the head to it."""
        matrix = self.param(weight, (vocab, width(x)), "head")
        out = self._one("lm_head", "lm_head", {"x": x, "weight": matrix}, scale=scale, softcap=softcap)
        self.graph.emit("output", {"x": out}, {"label": "output"})


def width(value: Value) -> int:
    """The number of columns of a row tensor."""
    return int(from_type(value.type).shape[-1] or 0)


def _stem(weight: str) -> str:
    return weight.removesuffix(".weight")
