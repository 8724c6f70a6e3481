"""Rules a graph obeys at each stage, beyond what the dialect declares; run between all passes, always on.

Stages: "model" (what a family builds), "rewriting" (between passes: any op), "fused" (what the lowering accepts).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from goinfer.compiler.graph import Graph
from goinfer.compiler.graph_view import GraphOp, GraphView, Param, view_of
from goinfer.compiler.ir import ir, signatures
from goinfer.compiler.ops import FUSED, MODEL, OPS, ROLES, GraphError, TensorType
from goinfer.compiler.reference import ACTIVATIONS

REWRITING = "rewriting"
STAGES = (MODEL, REWRITING, FUSED)


def verify(graph: Graph, stage: str) -> None:
    """Raise GraphError, naming the op and its attributes, unless the graph is valid at the stage."""
    if stage not in STAGES:
        raise GraphError(f"stage {stage!r}: expected one of {', '.join(STAGES)}")
    try:
        graph.module.operation.verify()
    except ir.MLIRError as error:
        raise GraphError("graph: " + " ".join(str(error).split())) from None
    ops, types = graph.plain_ops()
    for op in ops:
        _check_op(op, types, stage)
    view = view_of(ops, types)
    _check_whole(view)
    if stage == FUSED:
        _check_stored_once(view.params)


def _check_op(op: GraphOp, types: list[TensorType], stage: str) -> None:
    if stage != REWRITING and stage not in OPS[op.name].stages:
        raise _error(op, f"the op is not part of the {stage} stage")
    _check_attributes(op)
    shapes = {name: types[vid] for name, vid in op.operands.items()}
    results = tuple(types[vid] for vid in op.results)
    for rule, holds in ATTRIBUTE_RULES.items():
        for name in rule.split():
            if name in op.attrs and not holds(op.attrs[name]):
                raise _error(op, f"attribute {name} = {op.attrs[name]!r} is out of range")
    if op.name == "param":
        _check_param(op, results[0])
        return
    try:
        expected = OPS[op.name].infer(op.attrs, shapes)
    except GraphError as error:
        raise _error(op, str(error)) from None
    if results != expected:
        raise _error(op, f"results are {_types(results)}, the operands give {_types(expected)}")


def _check_attributes(op: GraphOp) -> None:
    declared = signatures()[op.name].attributes
    unknown, missing = set(op.attrs) - set(declared), set(declared) - set(op.attrs)
    if unknown or missing:
        raise _error(op, f"attributes unknown: {sorted(unknown)}, missing: {sorted(missing)}")
    for name, kind in declared.items():
        if (kind == "#builtin.integer" and name in BOOLEANS) != isinstance(op.attrs[name], bool):
            raise _error(op, f"attribute {name} = {op.attrs[name]!r} has the wrong type")


BOOLEANS = ("interleaved",)

# Attribute names -> what each of their values must satisfy, on whatever op they stand.
ATTRIBUTE_RULES: Mapping[str, Callable[[Any], bool]] = {
    "label name family": bool,
    "eps post_eps": lambda v: math.isfinite(v) and v > 0,
    "scale factor attention_factor": lambda v: math.isfinite(v) and v != 0,
    "softcap cap": lambda v: math.isfinite(v) and v >= 0,
    "window layer index start": lambda v: v >= 0,
    "n_heads n_kv_heads head_dim size vocab hidden n_layers context": lambda v: v > 0,
    "dim": lambda v: v > 0 and v % 2 == 0,
    "inv_freq": lambda v: bool(v) and all(math.isfinite(f) and f >= 0 for f in v),
    "fn": lambda v: v in ACTIVATIONS,
    "role": lambda v: v in ROLES,
}


def _check_param(op: GraphOp, shape: TensorType) -> None:
    parts, rows = op.attrs["parts"], op.attrs["rows"]
    if len(parts) != len(rows) or not parts or min(rows) <= 0 or sum(rows) != shape.shape[0]:
        raise _error(op, f"rows {rows} of parts {parts} do not add up to {shape}")
    if None in shape.shape or shape.dtype != "f32":
        raise _error(op, f"a parameter has a fixed f32 shape, not {shape}")


def _check_whole(view: GraphView) -> None:
    counts = Counter(op.name for op in view.ops)
    for name in ("token_ids", "output"):
        if counts[name] != 1:
            raise GraphError(f"graph: {counts[name]} {name} ops, expected one")
    labels = Counter(op.label for op in view.ops)
    names = Counter(param.name for param in view.params.values())
    for what, counter in (("label", labels), ("param", names)):
        twice = [name for name, count in counter.items() if count > 1]
        if twice:
            raise GraphError(f"graph: {what} {twice[0]} is used by two ops")
    taps = [op.attrs["index"] for op in view.ops if op.name == "hidden"]
    if taps != list(range(view.info.n_layers + 2)):
        raise GraphError(f"graph: hidden states {taps}, expected 0..{view.info.n_layers + 1} in order")
    _check_states(view)


def _check_states(view: GraphView) -> None:
    """Rope tables exist and fit the heads; every read of a layer's state follows its one write."""
    written: set[int] = set()
    for op in view.ops:
        table = op.attrs.get("table", "")
        if table and table not in view.ropes:
            raise _error(op, f"rope table {table} is not declared")
        if table and view.ropes[table].dim > op.attrs["head_dim"]:
            raise _error(op, f"rope table {table} turns {view.ropes[table].dim} elements of a smaller head")
        if "layer" not in op.attrs:
            continue
        layer = op.attrs["layer"]
        if layer not in view.kv_layers:
            raise _error(op, f"state of layer {layer} is not declared")
        if op.name in ("kv_write", "qkv_post"):
            if layer in written:
                raise _error(op, f"state of layer {layer} is written twice")
            written.add(layer)
        _check_state_shape(op, view)
        if op.name == "attention" and layer not in written:
            raise _error(op, f"state of layer {layer} is read before it is written")
    for name, table in view.ropes.items():
        if 2 * len(table.inv_freq) != table.dim:
            raise GraphError(f"rope_table {name}: {len(table.inv_freq)} frequencies for {table.dim} elements")


def _check_state_shape(op: GraphOp, view: GraphView) -> None:
    state = view.kv_layers[op.attrs["layer"]]
    if op.name == "kv_write":
        width = view.types[op.operands["k"]].shape[1]
        if width != state.n_kv_heads * state.head_dim:
            raise _error(op, f"k has width {width}, the state {state}")
    for name in ("n_kv_heads", "head_dim", "window"):
        if name in op.attrs and op.attrs[name] != getattr(state, name):
            raise _error(op, f"{name} is {op.attrs[name]}, the declared state has {getattr(state, name)}")


def _check_stored_once(params: Mapping[int, Param]) -> None:
    parts = Counter(part for param in params.values() for part in param.parts)
    twice = [part for part, count in parts.items() if count > 1]
    if twice:
        raise GraphError(f"param {twice[0]}: the source tensor would be stored twice")


def _types(types: tuple[TensorType, ...]) -> str:
    return ", ".join(str(t) for t in types) or "none"


def _error(op: GraphOp, text: str) -> GraphError:
    return GraphError(f"{op.name} {op.label or op.attrs.get('name', '')}: {text}")
