"""dce: ops whose results nobody uses go away, params included."""

from goinfer.compiler.graph import Graph, op_name
from goinfer.compiler.ops import OPS


def dce(graph: Graph) -> None:
    """Erase, last op first, every op without effect that has results and no user of any of them."""
    for op in reversed(graph.operations()):
        used = any(True for result in op.results for _ in result.uses)
        if op.results and not used and not OPS[op_name(op)].effect:
            op.erase()
