"""What a model family is to the compiler, and how a checkpoint becomes a checked graph.

The compiler never imports a family: callers look one up in families/registry.py and hand it over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.source import Checkpoint
from goinfer.compiler.checkpoints.tensor_map import SourceMap, TensorRow, Weights
from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.graph_view import GraphView, KvLayer, ModelInfo
from goinfer.compiler.ops import MODEL

if TYPE_CHECKING:  # MLIR is loaded once a graph is built
    from goinfer.compiler.graph import Graph, GraphBuilder


class FamilyConfig(Protocol):
    """What the compiler asks of every family's config."""

    @property
    def vocab(self) -> int:
        """Rows of the logits."""

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""

    @property
    def n_layers(self) -> int:
        """Number of layers."""

    @property
    def context(self) -> int:
        """Longest sequence the model was made for."""

    @property
    def head_dim(self) -> int:
        """Rows of a head in stored q and k."""


@dataclass(frozen=True)
class Parity:
    """How a family is proved against transformers: class names there, and configs of tiny random models."""

    model_class: str
    config_class: str
    tiny: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Family:
    """One model family as data and four functions; see families/llama.py for the order of a family file.

    `configure` reads a config (every key used, or named in `irrelevant`); `build` states the graph's ops from
    token ids to logits; `kv_layers` the state of each layer. `precision` maps patterns of graph tensor names
    that must not go below 8 bits to the reason.
    """

    name: str
    configure: Callable[[ConfigView, SourceMap], Any]
    build: Callable[[GraphBuilder, Any], None]
    kv_layers: Callable[[Any], Sequence[KvLayer]]
    tensors: Sequence[TensorRow]
    parity: Parity
    ignored: Sequence[str] = ()
    irrelevant: frozenset[str] = frozenset()
    precision: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltModel:
    """A checkpoint as a graph at the model stage, its weights by graph name, and the family's config.

    `notes` are sentences for the user on what was decided for the checkpoint (a shared head).
    """

    graph: Graph
    weights: Weights
    config: Any
    notes: tuple[str, ...] = ()


def build_model(family: Family, checkpoint: Checkpoint) -> BuiltModel:
    """Read the config, build and verify the graph, and check its tensors against the checkpoint both ways.

    Raises UnsupportedError or CheckpointError naming the key or tensor. Reads no weights but small tables.
    """
    return built(family, *read_config(family, checkpoint))


def read_config(family: Family, checkpoint: Checkpoint) -> tuple[SourceMap, Any]:
    """The checkpoint's tensors by graph name, and the family's config, which alone decides the graph."""
    sources = SourceMap.match(checkpoint, family.tensors, family.ignored)
    config = family.configure(checkpoint.config, sources)
    checkpoint.config.finish(set(family.irrelevant))
    return sources, config


def built(family: Family, sources: SourceMap, config: Any) -> BuiltModel:
    """The model of a config that was read."""
    graph = build_graph(family, config)
    view = graph.view()
    sources.check({param.name: param.shape for param in view.params.values()})
    return BuiltModel(graph, Weights(sources, config.head_dim), config, _notes(view, sources))


def _notes(view: GraphView, sources: SourceMap) -> tuple[str, ...]:
    used = sources.folded.union(param.name for param in view.params.values())
    spare = [source.name for name, source in sources.sources.items() if name not in used and source.spare]
    notes = [f"{name} is in the checkpoint and not stored: nothing reads it" for name in sorted(spare)]
    roles = {view.params[op.operands["weight"]].role for op in view.ops if op.name == "lm_head"}
    if roles == {"embed"}:
        notes.append("the output head is the embedding table, stored once")
    return tuple(notes)


def build_graph(family: Family, config: FamilyConfig) -> Graph:
    """The verified model-stage graph of a config."""
    from goinfer.compiler.graph import GraphBuilder
    from goinfer.compiler.verify import verify

    states = family.kv_layers(config)
    if len(states) != config.n_layers:
        raise UnsupportedError(f"{family.name}: {len(states)} layer states for {config.n_layers} layers")
    g = GraphBuilder()
    g.model(ModelInfo(family.name, config.vocab, config.hidden, config.n_layers, config.context))
    for layer, state in enumerate(states):
        g.kv_cache(layer, state)
    family.build(g, config)
    verify(g.graph, MODEL)
    return g.graph
