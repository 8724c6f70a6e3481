"""The ordered passes from the model stage to the fused stage, verified in between."""

from collections.abc import Callable

from goinfer.compiler.graph import Graph
from goinfer.compiler.ops import FUSED, MODEL, GraphError
from goinfer.compiler.passes.canonicalise import canonicalise
from goinfer.compiler.passes.dce import dce
from goinfer.compiler.passes.fuse_gate_up import fuse_gate_up
from goinfer.compiler.passes.fuse_norm import fuse_norm
from goinfer.compiler.passes.fuse_qkv import fuse_qkv
from goinfer.compiler.passes.qkv_post import qkv_post
from goinfer.compiler.verify import REWRITING, verify

Pass = Callable[[Graph], None]

PASSES: tuple[Pass, ...] = (canonicalise, fuse_qkv, qkv_post, fuse_gate_up, fuse_norm, dce)


def run_passes(graph: Graph, observe: Callable[[str, Graph], None] | None = None) -> None:
    """Bring a model-stage graph to the fused stage, in place; `observe` sees the graph after each pass.

    A pass may assume a valid graph and must leave one; GraphError names the pass that did not.
    """
    verify(graph, MODEL)
    for step in PASSES:
        step(graph)
        try:
            verify(graph, FUSED if step is PASSES[-1] else REWRITING)
        except GraphError as error:
            raise GraphError(f"after pass {step.__name__}: {error}") from None
        if observe is not None:
            observe(step.__name__, graph)
