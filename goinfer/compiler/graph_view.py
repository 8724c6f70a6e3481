"""A graph in plain Python: what the lowering, the interpreter and `inspect` read. No MLIR object in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goinfer.compiler.ops import GraphError, TensorType
from goinfer.compiler.reference import RopeTable


@dataclass(frozen=True)
class ModelInfo:
    """What the runtime must know before any op. `context` is the longest sequence the model was made for."""

    family: str
    vocab: int
    hidden: int
    n_layers: int
    context: int


@dataclass(frozen=True)
class KvLayer:
    """The keys and values one layer keeps per position; window 0 keeps every position."""

    n_kv_heads: int
    head_dim: int
    window: int = 0


@dataclass(frozen=True)
class Param:
    """A stored parameter: the source tensors `parts`, of `rows[i]` rows each, one after the other."""

    name: str
    shape: tuple[int, ...]
    role: str
    parts: tuple[str, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class GraphOp:
    """One op in plain Python: operand name -> value id (no entry for an absent optional one), result ids."""

    name: str
    operands: Mapping[str, int]
    results: tuple[int, ...]
    attrs: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The op's unique name, for people and for comparisons; facts and params have none."""
        return str(self.attrs.get("label", ""))


@dataclass(frozen=True)
class GraphView:
    """A whole graph in plain Python. `ops` are the compute ops in execution order; ids index `types`."""

    info: ModelInfo
    ropes: Mapping[str, RopeTable]
    kv_layers: Mapping[int, KvLayer]
    params: Mapping[int, Param]
    ops: tuple[GraphOp, ...]
    types: tuple[TensorType, ...]


def view_of(ops: Sequence[GraphOp], types: Sequence[TensorType]) -> GraphView:
    """Sort plain ops into facts, parameters and compute ops."""
    infos = [ModelInfo(**op.attrs) for op in ops if op.name == "model"]
    if len(infos) != 1:
        raise GraphError(f"graph: {len(infos)} model ops, expected one")
    ropes, kv, params, compute = {}, {}, {}, []
    for op in ops:
        attrs = dict(op.attrs)
        if op.name == "rope_table":
            name = attrs.pop("name")
            ropes[name] = RopeTable(**attrs)
        elif op.name == "kv_cache":
            layer = attrs.pop("layer")
            kv[layer] = KvLayer(**attrs)
        elif op.name == "param":
            shape = tuple(int(d or 0) for d in types[op.results[0]].shape)
            params[op.results[0]] = Param(shape=shape, **attrs)
        elif op.name != "model":
            compute.append(op)
    return GraphView(infos[0], ropes, kv, params, tuple(compute), tuple(types))
