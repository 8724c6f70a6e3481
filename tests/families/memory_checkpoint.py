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
    """Random weights of a graph's parameters by graph name, sized so that activations stay near 1."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for param in graph.view().params.values():
        spread = 0.3 if param.role in ("norm", "bias") else param.shape[-1] ** -0.5 * 1.5
        values = rng.standard_normal(param.shape) * spread + (param.role == "norm")
        arrays[param.name] = values.astype(np.float32)
    return arrays


def tiny_graph(family: Family, config: dict[str, Any], **extra: tuple[int, ...]) -> Graph:
    """The model-stage graph of a tiny config; `extra` are tensors (by graph name) whose presence matters."""
    shapes = {"token_embd.weight": (config["vocab_size"], config["hidden_size"]), **extra}
    rows = {row.graph: row for row in family.tensors}
    arrays = {rows[name].gguf: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    store = MemoryCheckpoint("gguf", config, arrays)
    return build_graph(family, family.configure(store.config, SourceMap.match(store, family.tensors, family.ignored)))
