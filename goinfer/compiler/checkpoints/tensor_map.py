"""Source tensors by graph name: exact names per checkpoint kind, transforms, completeness both ways.

A family lists TensorRows; `{i}` in a name stands for the layer number. Nothing is matched by substring: a tensor of
the checkpoint is in the map, listed as ignored, or an error.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.compiler.checkpoints.source import Checkpoint, TensorInfo
from goinfer.compiler.errors import CheckpointError, MissingTensorError, TensorShapeError, UnsupportedError

F32 = NDArray[np.float32]
SHOWN = 4  # names listed in one error line


@dataclass(frozen=True)
class Transform:
    """How stored rows become graph rows.

    `order(head_dim)` gives, for each row of a head, its stored row in that head (so a band of rows stays cheap
    to read); `values` changes the numbers, which rules out taking over a quantised tensor's own blocks.
    """

    name: str
    order: Callable[[int], NDArray[np.intp]] | None = None
    values: Callable[[F32], F32] | None = None


def _unpair(head_dim: int) -> NDArray[np.intp]:
    return np.arange(head_dim).reshape(head_dim // 2, 2).T.reshape(-1)


AS_STORED = Transform("as stored")
# GGUF keeps llama's q and k rows as interleaved pairs: stored row 2i+j of a head is graph row j*dim/2 + i.
UNPAIR_ROWS = Transform("unpair the rows of each head", order=_unpair)
# Safetensors hold gemma's norm weights as w where the norm multiplies by 1 + w (GGUF files hold 1 + w).
PLUS_ONE = Transform("add one", values=lambda w: w + np.float32(1.0))


@dataclass(frozen=True)
class TensorRow:
    """One tensor of a family: graph name, its name in GGUF and in safetensors ("" if it has none there).

    `spare` tensors may lie in the checkpoint without being used (a head that is tied to the embedding).
    """

    graph: str
    gguf: str
    hf: str
    gguf_transform: Transform = AS_STORED
    hf_transform: Transform = AS_STORED
    spare: bool = False


@dataclass(frozen=True)
class Source:
    """Where a graph tensor comes from."""

    name: str
    transform: Transform
    spare: bool


class SourceMap:
    """Graph name -> Source for the tensors a checkpoint has."""

    def __init__(self, store: Checkpoint, sources: Mapping[str, Source]):
        self.store = store
        self.sources = sources
        self.folded: set[str] = set()

    @classmethod
    def match(cls, store: Checkpoint, rows: Sequence[TensorRow], ignored: Iterable[str]) -> "SourceMap":
        """Match every tensor of the checkpoint. Raises UnsupportedError for one that no row or pattern names.

        `ignored` holds exact names or patterns with `*`, for tensors that cannot change the numbers.
        """
        exact = {name: row for row in rows for name in [_side(row, store.kind)[0]] if name}
        layered = [(_pattern(name), row) for name, row in exact.items() if "{i}" in name]
        sources: dict[str, Source] = {}
        unknown = []
        for name in store.tensors:
            row, layer = _find(name, exact, layered)
            if row is not None:
                graph_name = row.graph.replace("{i}", layer)
                sources[graph_name] = Source(name, _side(row, store.kind)[1], row.spare)
            elif not any(fnmatchcase(name, pattern) for pattern in ignored):
                unknown.append(name)
        if unknown:
            raise UnsupportedError(f"tensor {_some(unknown)}: no tensor of this family has that name")
        return cls(store, sources)

    def has(self, name: str) -> bool:
        """True if the checkpoint has the graph tensor."""
        return name in self.sources

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape of a graph tensor. Raises MissingTensorError if the checkpoint lacks it."""
        if name not in self.sources:
            raise MissingTensorError(f"missing tensor: {name}")
        return tuple(self.store.tensors[self.sources[name].name].shape)

    def constant(self, name: str) -> F32 | None:
        """A small tensor as a whole, None if the checkpoint lacks it. Its numbers become part of the graph itself."""
        if name not in self.sources:
            return None
        self.folded.add(name)
        return self.store.read(self.sources[name].name)

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise CheckpointError unless the checkpoint has exactly these graph tensors, with these shapes."""
        missing = [name for name in shapes if name not in self.sources]
        if missing:
            raise MissingTensorError(f"missing tensor: {_some(missing)}: the config asks for it")
        for name, shape in shapes.items():
            source = self.sources[name].name
            found = tuple(self.store.tensors[source].shape)
            if found != shape:
                raise TensorShapeError(f"tensor {source}: shape {list(found)}, the config asks for {list(shape)}")
        used = self.folded.union(shapes)
        unused = [s.name for name, s in self.sources.items() if name not in used and not s.spare]
        if unused:
            raise CheckpointError(f"unused tensor: {_some(unused)}: the config has no place for it")


class Weights:
    """Reading graph tensors in bands of rows, transforms applied. Nothing is cached."""

    def __init__(self, sources: SourceMap, head_dim: int):
        self._store = sources.store
        self._sources = sources.sources
        self._head_dim = head_dim

    def source(self, name: str) -> Source:
        """Where the graph tensor comes from. Raises MissingTensorError for a name it lacks."""
        if name not in self._sources:
            raise MissingTensorError(f"missing tensor: {name}")
        return self._sources[name]

    def info(self, name: str) -> TensorInfo:
        """The checkpoint's entry of the graph tensor."""
        return self._store.tensors[self.source(name).name]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> F32:
        """Rows start .. stop of the graph tensor as float32."""
        source = self.source(name)
        rows = self._rows(self._store.read, source, start, stop)
        return source.transform.values(rows) if source.transform.values else rows

    def read_blocks(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.uint8] | None:
        """Raw quantised blocks of rows start .. stop; None if there are none that hold the graph's values."""
        source = self.source(name)
        if source.transform.values or self._store.read_blocks(source.name, 0, 0) is None:
            return None
        return self._rows(self._store.read_blocks, source, start, stop)

    def _rows(self, read: Callable[..., Any], source: Source, start: int, stop: int | None) -> Any:
        stop = int(self._store.tensors[source.name].shape[0]) if stop is None else stop
        if source.transform.order is None:
            return read(source.name, start, stop)
        dim = self._head_dim
        low, high = start // dim * dim, -(-stop // dim) * dim
        heads = read(source.name, low, high)
        order = source.transform.order(dim)
        rows = (np.arange(low, high, dim)[:, None] + order).reshape(-1) - low
        return heads[rows[start - low : stop - low]]


def _side(row: TensorRow, kind: str) -> tuple[str, Transform]:
    return (row.gguf, row.gguf_transform) if kind == "gguf" else (row.hf, row.hf_transform)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\{i\}", r"(0|[1-9]\d*)"))


def _find(
    name: str, exact: Mapping[str, TensorRow], layered: Sequence[tuple[re.Pattern[str], TensorRow]]
) -> tuple[TensorRow | None, str]:
    if name in exact and "{i}" not in name:
        return exact[name], ""
    for pattern, row in layered:
        if match := pattern.fullmatch(name):
            return row, match.group(1)
    return None, ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
