"""What a model family is to the compiler, and how a checkpoint becomes a checked graph.

The compiler never imports a family: callers look one up in families/registry.py and hand it over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from goinfer.compiler.checkpoints.tensor_map import SourceMap, TensorRow, TensorStore, Weights
from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.graph import Graph, GraphBuilder, KvLayer, ModelInfo
from goinfer.compiler.ops import MODEL
from goinfer.compiler.verify import verify


class ConfigSource(Protocol):
    """The part of a ConfigView that families use. Reading a key counts as using it."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""

    def require(self, key: str) -> Any:
        """The value of a key that must be there."""

    def finish(self, irrelevant: set[str]) -> None:
        """Raise UnsupportedError for a key that was neither read nor is in `irrelevant`."""


class CheckpointSource(TensorStore, Protocol):
    """The part of a Checkpoint that building a model uses."""

    @property
    def config(self) -> ConfigSource:
        """The config in Hugging Face spelling."""


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
    configure: Callable[[ConfigSource, SourceMap], Any]
    build: Callable[[GraphBuilder, Any], None]
    kv_layers: Callable[[Any], Sequence[KvLayer]]
    tensors: Sequence[TensorRow]
    parity: Parity
    ignored: Sequence[str] = ()
    irrelevant: frozenset[str] = frozenset()
    precision: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltModel:
    """A checkpoint as a graph at the model stage, its weights by graph name, and the family's config."""

    graph: Graph
    weights: Weights
    config: Any


def build_model(family: Family, checkpoint: CheckpointSource) -> BuiltModel:
    """Read the config, build and verify the graph, and check its tensors against the checkpoint both ways.

    Raises UnsupportedError or CheckpointError naming the key or tensor. Reads no weights but small tables.
    """
    sources = SourceMap.match(checkpoint, family.tensors, family.ignored)
    config = family.configure(checkpoint.config, sources)
    checkpoint.config.finish(set(family.irrelevant))
    graph = build_graph(family, config)
    sources.check({param.name: param.shape for param in graph.view().params.values()})
    return BuiltModel(graph, Weights(sources, config.head_dim), config)


def build_graph(family: Family, config: FamilyConfig) -> Graph:
    """The verified model-stage graph of a config."""
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
