"""Small moves that the passes share: who made a value, who uses it, replace, erase, merge linears."""

from collections.abc import Mapping
from functools import cmp_to_key
from typing import Any

from goinfer.compiler.graph import Graph, Operation, Value, attrs_of, op_name, operands_of, width
from goinfer.compiler.ir import ir
from goinfer.compiler.ops import TensorType


def producer(value: Value, *names: str) -> Operation | None:
    """The op that made the value if it has one of the names, else None."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner if isinstance(owner, ir.Operation) else owner.operation
    return op if op_name(op) in names else None


def users(value: Value) -> list[Operation]:
    """The ops that use the value, in program order."""

    def order(a: Operation, b: Operation) -> int:
        return -1 if a.is_before_in_block(b) else 1

    return sorted({use.owner.operation for use in value.uses}, key=cmp_to_key(order))


def replace(op: Operation, *values: Value) -> None:
    """Let every user of the op's results use the values instead, and erase the op."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def param_attrs(value: Value) -> dict[str, Any]:
    """The attributes of the param op that made the value."""
    op = producer(value, "param")
    return attrs_of(op) if op is not None else {}


def merge_linears(graph: Graph, role: str, merged: str) -> None:
    """Turn the linears of one role that read the same rows into one linear and a slice of it for each.

    Their weights, in program order, become one parameter named after the first's layer and `merged`
    (blk.0.attn_q.weight -> blk.0.<merged>.weight). Groups where only some have a bias stay as they are.
    """
    groups: dict[Value, list[Operation]] = {}
    for op in graph.operations("linear"):
        operands = operands_of(op)
        if param_attrs(operands["weight"]).get("role") == role:
            groups.setdefault(operands["x"], []).append(op)
    for x, linears in groups.items():
        biased = sum("bias" in operands_of(op) for op in linears)
        if len(linears) > 1 and biased in (0, len(linears)):
            _merge(graph, x, linears, merged)


def _merge(graph: Graph, x: Value, linears: list[Operation], merged: str) -> None:
    first = linears[0]
    layer = attrs_of(first)["label"].rpartition(".")[0]
    stem = f"{layer}.{merged}" if layer else merged
    weight = _concatenate(graph, [operands_of(op)["weight"] for op in linears], f"{stem}.weight", first)
    bias = None
    if "bias" in operands_of(first):
        bias = _concatenate(graph, [operands_of(op)["bias"] for op in linears], f"{stem}.bias", first)
    (out,) = graph.emit("linear", {"x": x, "weight": weight, "bias": bias}, {"label": stem}, before=first)
    start = 0
    for op in linears:
        size = width(op.results[0])
        facts = {"label": attrs_of(op)["label"], "start": start, "size": size}
        (part,) = graph.emit("slice", {"x": out}, facts, before=op)
        replace(op, part)
        start += size


def _concatenate(graph: Graph, params: list[Value], name: str, before: Operation) -> Value:
    attrs = [param_attrs(param) for param in params]
    rows = tuple(row for a in attrs for row in a["rows"])
    facts: Mapping[str, Any] = {
        "name": name,
        "role": attrs[0]["role"],
        "parts": tuple(part for a in attrs for part in a["parts"]),
        "rows": rows,
    }
    inner = tuple(ir.RankedTensorType(params[0].type).shape[1:])
    (value,) = graph.emit("param", {}, facts, before=before, type_=TensorType((sum(rows), *inner)))
    return value
