"""fuse_norm: a residual add and the norm of its sum become one add_norm, with the norm of the branch if it has one."""

from goinfer.compiler.graph import Graph, Operation, attrs_of, operands_of, width
from goinfer.compiler.passes.rewrite import producer, replace, users


def fuse_norm(graph: Graph) -> None:
    """Fuse each add whose sum is normed over the whole row; a second norm of the sum stays a norm."""
    for add in graph.operations("add"):
        norms = [op for op in users(add.results[0]) if _whole_row_norm(op)]
        if norms:
            _fuse(graph, add, norms[0])


def _fuse(graph: Graph, add: Operation, norm: Operation) -> None:
    terms, facts = operands_of(add), attrs_of(norm)
    operands = {"x": terms["x"], "delta": terms["y"], "weight": operands_of(norm)["weight"]}
    attrs = {"label": facts["label"], "eps": facts["eps"], "post_eps": facts["eps"]}
    post = producer(terms["y"], "rms_norm")
    if post is not None and _whole_row_norm(post) and len(users(terms["y"])) == 1:
        operands |= {"delta": operands_of(post)["x"], "post_weight": operands_of(post)["weight"]}
        attrs["post_eps"] = attrs_of(post)["eps"]
    # At the add, so that every user of the sum comes after it; a weight that is declared later moves up.
    weight = operands["weight"].owner.operation
    if add.is_before_in_block(weight):
        weight.move_before(add)
    total, normed = graph.emit("add_norm", operands, attrs, before=add)
    replace(norm, normed)
    replace(add, total)


def _whole_row_norm(op: Operation) -> bool:
    return op.name == "giw.rms_norm" and attrs_of(op)["size"] == width(operands_of(op)["x"])
