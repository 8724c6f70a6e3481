"""canonicalise: ops that change nothing go away."""

from goinfer.compiler.graph import Graph, attrs_of, operands_of, width
from goinfer.compiler.passes.rewrite import replace


def canonicalise(graph: Graph) -> None:
    """Drop scale by 1, softcap 0 and slices of the whole row."""
    for op in graph.operations("scale", "softcap", "slice"):
        attrs, x = attrs_of(op), operands_of(op)["x"]
        if attrs.get("factor") == 1.0 or attrs.get("cap") == 0.0 or attrs.get("size") == width(x):
            replace(op, x)
