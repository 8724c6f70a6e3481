"""A checkpoint that lives in memory: what the readers give, without files. The real readers have their own tests."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.tensor_map import SourceMap
from goinfer.compiler.family import Family, build_graph
from goinfer.compiler.graph import Graph


@dataclass
class Entry:
    shape: tuple[int, ...]
    dtype: str = "F32"
    nbytes: int = 0


class MemoryCheckpoint:
    """Named float32 arrays and a config; `blocks` are raw quantised rows of some tensors."""

    def __init__(self, kind: str, config: dict[str, Any], arrays: dict[str, np.ndarray], blocks=None):
        self.kind, self.config, self.arrays, self.blocks = kind, ConfigView(config), arrays, blocks or {}
        self.tensors = {name: Entry(tuple(a.shape), nbytes=a.nbytes) for name, a in arrays.items()}
        self.reads: list[tuple[str, int, int | None]] = []

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        self.reads.append((name, start, stop))
        return self.arrays[name][start:stop].astype(np.float32)

    def read_blocks(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray | None:
        return self.blocks[name][start:stop] if name in self.blocks else None


def random_weights(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights of a graph's parameters by graph name: activations near 1, but embeddings near 0.03.

    An embedding's mean square is then about a hundred times a usual eps, so that a wrong eps shows.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    for param in graph.view().params.values():
        spread = {"norm": 0.3, "bias": 0.3, "embed": 0.03}.get(param.role, param.shape[-1] ** -0.5 * 1.5)
        values = rng.standard_normal(param.shape) * spread + (param.role == "norm")
        arrays[param.name] = values.astype(np.float32)
    return arrays


def tiny_graph(family: Family, config: dict[str, Any]) -> Graph:
    """The model-stage graph of a tiny config, its head tied to the embedding."""
    embedding = np.zeros((config["vocab_size"], config["hidden_size"]), np.float32)
    store = MemoryCheckpoint("gguf", config, {"token_embd.weight": embedding})
    sources = SourceMap.match(store, family.tensors, family.ignored)
    return build_graph(family, family.configure(store.config, sources))
