"""fuse_gate_up: the gate and up projections become one linear over gate|up, act and mul one gate_act."""

from goinfer.compiler.graph import Graph, Operation, attrs_of, operands_of, width
from goinfer.compiler.passes.rewrite import merge_linears, producer, replace, users


def fuse_gate_up(graph: Graph) -> None:
    """Merge the linears of role mlp_gate_up, then every mul(act(first half), second half) of one value."""
    merge_linears(graph, "mlp_gate_up", "ffn_gate_up")
    for mul in graph.operations("mul"):
        _fuse(graph, mul)


def _fuse(graph: Graph, mul: Operation) -> None:
    factors = operands_of(mul)
    act, up = producer(factors["x"], "act"), producer(factors["y"], "slice")
    gate = producer(operands_of(act)["x"], "slice") if act is not None else None
    if act is None or up is None or gate is None or len(users(act.results[0])) > 1:
        return
    source = operands_of(gate)["x"]
    size = width(source) // 2
    starts = [(attrs_of(half)["start"], attrs_of(half)["size"]) for half in (gate, up)]
    if source != operands_of(up)["x"] or starts != [(0, size), (size, size)]:
        return
    facts = {"label": attrs_of(mul)["label"], "fn": attrs_of(act)["fn"], "size": size}
    replace(mul, *graph.emit("gate_act", {"gate_up": source}, facts, before=mul))
