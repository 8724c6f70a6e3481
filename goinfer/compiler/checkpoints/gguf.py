"""GGUF checkpoints: one file, or the numbered parts of a split one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from goinfer.bundle_format.errors import shown
from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.dequantise import dequantise
from goinfer.compiler.checkpoints.files import FileSet, SourceFile, refuse_lfs_pointer
from goinfer.compiler.checkpoints.finite import check_blocks, check_values
from goinfer.compiler.checkpoints.ggml_types import GgmlType
from goinfer.compiler.checkpoints.gguf_config import translate
from goinfer.compiler.checkpoints.gguf_header import GgufHeader, GgufTensor, read_header
from goinfer.compiler.checkpoints.gguf_layout import check_layout
from goinfer.compiler.checkpoints.gguf_tokenizer import chat_template, generation_defaults, tokenizer_source
from goinfer.compiler.checkpoints.source import TensorInfo
from goinfer.compiler.errors import (
    ConfigError,
    DuplicateError,
    MissingTensorError,
    SplitError,
)

EMBEDDING: Final = "token_embd.weight"
_PART: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class _Place:
    """A tensor and where its bytes begin."""

    tensor: GgufTensor
    file: SourceFile
    start: int


class GgufCheckpoint:
    """An open GGUF model. Weights are read in bands of rows; nothing is kept."""

    kind: Literal["gguf"] = "gguf"

    def __init__(self, path: Path, files: FileSet, headers: list[GgufHeader]) -> None:
        self.path = path
        self._files = files
        self._places = _places(files, headers)
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, place.tensor.shape, place.tensor.kind.name, place.tensor.nbytes)
            for name, place in self._places.items()
        }
        metadata = headers[0].metadata
        name = files.files[0].name
        self.architecture = _text(metadata, "general.architecture", name)
        rows = self._vocabulary(name)
        self.config = ConfigView(translate(self.architecture, metadata, rows), name)
        self.tokenizer = tokenizer_source(metadata, rows)
        self.chat_template = chat_template(metadata)
        self.generation: dict[str, Any] = generation_defaults(metadata, self.tokenizer)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows [start, stop) along the first axis, dequantised; takes room for the blocks and for the result."""
        tensor = self._place(name).tensor
        kind, shape = tensor.kind, tensor.shape
        if len(shape) == 1 and kind.block_size > 1:  # elements of a block cannot be read alone
            return self._values(name, kind, self._blocks(name, (1, *shape), 0, 1), 0, shape).reshape(-1)[start:stop]
        start, stop, _ = slice(start, stop).indices(shape[0])
        values = self._values(name, kind, self._blocks(name, shape, start, stop), start, shape)
        return values.reshape(-1, *shape[1:])

    def read_blocks(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint8] | None:
        """The same rows as blocks [rows, bytes], checked for finite scales; None for plain types and vectors."""
        tensor = self._place(name).tensor
        if tensor.kind.block_size == 1 or len(tensor.shape) == 1:
            return None
        start, stop, _ = slice(start, stop).indices(tensor.shape[0])
        blocks = self._blocks(name, tensor.shape, start, stop)
        if tensor.kind.scales is None:
            self._values(name, tensor.kind, blocks, start, tensor.shape)
        else:
            check_blocks(name, tensor.kind, blocks, start, tensor.shape)
        return blocks

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise MissingTensorError(f"{shown(self.path.name)}: no tensor {name!r}")
        return self._places[name]

    def _blocks(self, name: str, shape: tuple[int, ...], start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Raw bytes [rows, bytes of a row] of a range along the first axis."""
        place = self._places[name]
        row_bytes = place.tensor.nbytes // shape[0]
        raw = np.empty((max(0, stop - start), row_bytes), np.uint8)
        if raw.size:
            place.file.read_into(raw.reshape(-1), place.start + start * row_bytes)
        return raw

    def _values(
        self, name: str, kind: GgmlType, blocks: npt.NDArray[np.uint8], start: int, shape: tuple[int, ...]
    ) -> npt.NDArray[np.float32]:
        """Blocks as finite float32 values."""
        if kind.scales is not None:
            check_blocks(name, kind, blocks, start, shape)
        values = dequantise(kind.name, blocks)
        if kind.scales is None:
            check_values(name, values, start, shape)
        return values

    def _vocabulary(self, name: str) -> int:
        """Rows of the embedding."""
        embedding = self.tensors.get(EMBEDDING)
        if embedding is None:
            raise MissingTensorError(f"{name}: no tensor {EMBEDDING!r}: this is not a language model's file")
        return embedding.shape[0]


def open_gguf(path: Path) -> GgufCheckpoint:
    """Open a GGUF file; any part of a split model opens the whole. Raises CheckpointError or UnsupportedError."""
    with FileSet() as files:
        first = files.open(path)
        refuse_lfs_pointer(first)
        header = read_header(first)
        names = _part_names(path, header)
        if names[0] != path.name:
            files.close()
            return open_gguf(path.with_name(names[0]))
        headers = [header]
        for name in names[1:]:
            part = files.open(path.with_name(name))
            refuse_lfs_pointer(part)
            headers.append(read_header(part))
        _check_parts(files.files, headers)
        for file, head in zip(files.files, headers, strict=True):
            check_layout(file, head)
        return GgufCheckpoint(path, files, headers)


def _part_names(path: Path, header: GgufHeader) -> list[str]:
    """File names of all parts, in order; just this one for a model that is not split."""
    count = header.metadata.get("split.count", 0)
    if count in (0, 1):
        return [path.name]
    number = header.metadata.get("split.no")
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count or int(match["number"]) - 1 != number:
        raise SplitError(
            f"{shown(path.name)}: part {number!r} (from 0) of {count!r}, but not named NAME-0000M-of-0000N.gguf "
            "accordingly: give the parts their own names back"
        )
    names = [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    missing = [name for name in names if not path.with_name(name).exists()]
    if missing:
        raise SplitError(f"{shown(path.name)}: part {shown(missing[0])} of the split model is not beside it")
    return names


def _check_parts(files: list[SourceFile], headers: list[GgufHeader]) -> None:
    """The parts number themselves as their names do, and the first one's total is right."""
    total = sum(len(header.tensors) for header in headers)
    if total == 0:
        raise MissingTensorError(f"{files[0].name}: holds no tensors")
    if len(headers) == 1:
        return
    for number, (file, header) in enumerate(zip(files, headers, strict=True)):
        if header.metadata.get("split.no") != number or header.metadata.get("split.count") != len(headers):
            raise SplitError(f"{file.name}: does not call itself part {number} (from 0) of {len(headers)}")
    declared = headers[0].metadata.get("split.tensors.count", total)
    if declared != total:
        raise SplitError(f"{files[0].name}: the parts hold {total} tensors, the first one says {declared}")


def _places(files: FileSet, headers: list[GgufHeader]) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for file, header in zip(files.files, headers, strict=True):
        for tensor in header.tensors:
            if tensor.name in places:
                other = places[tensor.name].file.name
                raise DuplicateError(f"tensor {tensor.name!r} occurs twice: in {other} and in {file.name}")
            places[tensor.name] = _Place(tensor, file, header.data_start + tensor.offset)
    return places


def _text(metadata: Mapping[str, Any], key: str, name: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}: metadata key {key} is missing")
    return value
