"""qkv_post: per-head norms, RoPE and the KV write of a layer become one op over the rows of q|k|v."""

from dataclasses import dataclass

from goinfer.compiler.graph import Graph, Operation, Value, attrs_of, operands_of, width
from goinfer.compiler.passes.rewrite import producer, replace


@dataclass(frozen=True)
class Chain:
    """Where a query or key comes from: the columns [start, start + size) of `source`, normed, then rotated."""

    source: Value
    start: int
    size: int
    norm: Value | None
    norm_attrs: tuple[float, int] | None  # eps, size
    rope: tuple[str, bool, int] | None  # table, interleaved, head_dim


def qkv_post(graph: Graph) -> None:
    """Fuse every layer whose q, k and v are the slices of one value and share norm and rope settings.

    A layer wired in another way stays as it is, and the fused stage's verifier names the op that is left over.
    """
    writes = {attrs_of(op)["layer"]: op for op in graph.operations("kv_write")}
    for attention in graph.operations("attention"):
        layer = attrs_of(attention)["layer"]
        if layer in writes and _fuse(graph, attention, writes[layer]):
            del writes[layer]


def _fuse(graph: Graph, attention: Operation, write: Operation) -> bool:
    facts = attrs_of(attention)
    query = operands_of(attention)["q"]
    q, k = trace(query), trace(operands_of(write)["k"])
    v = trace(operands_of(write)["v"])
    if q is None or k is None or v is None or not _match(q, k, v, facts["head_dim"]):
        return False
    table, interleaved, _ = q.rope or ("", False, 0)
    eps = q.norm_attrs[0] if q.norm_attrs else 1.0
    attrs = {key: facts[key] for key in ("layer", "n_heads", "n_kv_heads", "head_dim")}
    attrs |= {"table": table, "interleaved": interleaved, "eps": eps}
    attrs["label"] = facts["label"] + "_qkv_post"
    operands = {"qkv": q.source, "q_norm": q.norm, "k_norm": k.norm}
    (fused,) = graph.emit("qkv_post", operands, attrs, before=attention)
    query.replace_all_uses_with(fused)
    replace(write)
    return True


def _match(q: Chain, k: Chain, v: Chain, head_dim: int) -> bool:
    """One source, columns q|k|v without gaps, v untouched, q and k treated alike, per head."""
    layout = [q.start, k.start, v.start, v.start + v.size]
    in_order = layout == [0, q.size, q.size + k.size, width(q.source)]
    alike = q.source == k.source == v.source and q.norm_attrs == k.norm_attrs and q.rope == k.rope
    per_head = q.norm_attrs is None or q.norm_attrs[1] == head_dim
    return in_order and alike and per_head and v.norm is None and v.rope is None


def trace(value: Value) -> Chain | None:
    """The chain slice -> rms_norm? -> rope? that made the value, or None if something else did."""
    rope, norm, norm_attrs = None, None, None
    if op := producer(value, "rope"):
        facts = attrs_of(op)
        rope = (facts["table"], facts["interleaved"], facts["head_dim"])
        value = operands_of(op)["x"]
    if op := producer(value, "rms_norm"):
        facts = attrs_of(op)
        norm, norm_attrs = operands_of(op)["weight"], (facts["eps"], facts["size"])
        value = operands_of(op)["x"]
    op = producer(value, "slice")
    if op is None:
        return None
    facts = attrs_of(op)
    return Chain(operands_of(op)["x"], facts["start"], facts["size"], norm, norm_attrs, rope)
