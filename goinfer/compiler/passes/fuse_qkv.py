"""fuse_qkv: the q, k and v projections of a layer become one linear over q|k|v."""

from goinfer.compiler.graph import Graph
from goinfer.compiler.passes.rewrite import merge_linears


def fuse_qkv(graph: Graph) -> None:
    """Merge the linears of role attn_qkv that read the same rows; each old result becomes a slice."""
    merge_linears(graph, "attn_qkv", "attn_qkv")
