"""Safetensors directories as Hugging Face lays them out: config.json, one file or an index of shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from goinfer.bundle_format.errors import shown
from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.dequantise import dequantise
from goinfer.compiler.checkpoints.files import FileSet, SourceFile
from goinfer.compiler.checkpoints.finite import check_values
from goinfer.compiler.checkpoints.hf_config import normalised
from goinfer.compiler.checkpoints.hf_generation import chat_template, generation_defaults
from goinfer.compiler.checkpoints.hf_tokenizer import tokenizer_source
from goinfer.compiler.checkpoints.json_files import read_json
from goinfer.compiler.checkpoints.safetensors_header import StoredTensor, read_header
from goinfer.compiler.checkpoints.source import TensorInfo
from goinfer.compiler.errors import (
    CheckpointError,
    ConfigError,
    DuplicateError,
    MissingShardError,
    MissingTensorError,
    NotACheckpointError,
    SplitError,
    TensorShapeError,
    TensorTypeError,
)

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
READABLE: Final = ("F32", "F16", "BF16")

_TEXT_PREFIXES: Final = (
    ("language_model.", ""),
    ("model.language_model.", "model."),
)
"""Where multimodal checkpoints keep the text model, and the prefix it has alone."""

_NOT_TEXT: Final = (
    "vision_tower.", "vision_model.", "multi_modal_projector.", "model.vision_tower.", "model.vision_model.",
    "model.multi_modal_projector.", "model.visual.", "visual.", "audio_tower.", "model.audio_tower.",
)  # fmt: skip
"""Towers and projectors beside the text model: left out of a multimodal checkpoint's tensors."""


class SafetensorsCheckpoint:
    """An open safetensors directory. Weights are read in bands of rows; nothing is kept."""

    kind: Literal["safetensors"] = "safetensors"

    def __init__(self, path: Path, config: Mapping[str, Any], files: FileSet) -> None:
        self.path = path
        self._files = files
        self._places = _text_tensors(_places(path, files), nested="text_config" in config)
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, tensor.shape, tensor.dtype, tensor.nbytes)
            for name, (tensor, _) in self._places.items()
        }
        values = normalised(config)
        self.architecture = str(values.get("model_type") or "")
        if not self.architecture:
            raise ConfigError(f"{shown(path)}: config.json: key model_type is missing")
        self.config = ConfigView(values, "config.json")
        self.tokenizer = tokenizer_source(path, values)
        self.chat_template = chat_template(path)
        self.generation: dict[str, Any] = generation_defaults(path, values, self.tokenizer)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows [start, stop) along the first axis as float32; takes room for the stored rows and for the result."""
        if name not in self._places:
            raise MissingTensorError(f"{shown(self.path.name)}: no tensor {name!r}")
        tensor, file = self._places[name]
        if tensor.dtype not in READABLE:
            raise TensorTypeError(f"{file.name}: tensor {name!r} has type {tensor.dtype}, which holds no weights here")
        if not tensor.shape or not tensor.nbytes:
            raise TensorShapeError(f"{file.name}: tensor {name!r} has shape {list(tensor.shape)}: no rows to read")
        start, stop, _ = slice(start, stop).indices(tensor.shape[0])
        row_bytes = tensor.nbytes // tensor.shape[0]
        raw = np.empty((max(0, stop - start), row_bytes), np.uint8)
        if raw.size:
            file.read_into(raw.reshape(-1), tensor.start + start * row_bytes)
        values = dequantise(tensor.dtype, raw)
        check_values(name, values, start, tensor.shape)
        return values.reshape(-1, *tensor.shape[1:])

    def read_blocks(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint8] | None:
        """None: these files have no blocks."""
        return None

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def open_safetensors(path: Path) -> SafetensorsCheckpoint:
    """Open a directory. Raises CheckpointError or UnsupportedError naming the file that is wrong."""
    config_file = path / "config.json"
    if not config_file.exists():
        raise NotACheckpointError(f"{shown(path)}: no config.json: not a checkpoint directory")
    config = read_json(config_file)
    with FileSet() as files:
        return SafetensorsCheckpoint(path, config, files)


def _places(path: Path, files: FileSet) -> dict[str, tuple[StoredTensor, SourceFile]]:
    """Every tensor and its file, from the single file or the shards of the index."""
    index = _index(path)
    names = [_single(path)] if index is None else sorted(set(index.values()))
    missing = [name for name in names if not (path / name).exists()]
    if missing:
        raise MissingShardError(f"{shown(path)}: the index names files that are not there: {_some(missing)}")
    places: dict[str, tuple[StoredTensor, SourceFile]] = {}
    for name in names:
        file = files.open(path / name)
        for tensor in read_header(file):
            if tensor.name in places:
                other = places[tensor.name][1].name
                raise DuplicateError(f"tensor {tensor.name!r} occurs twice: in {other} and in {file.name}")
            places[tensor.name] = (tensor, file)
    if not places:
        raise MissingTensorError(f"{shown(path)}: holds no tensors")
    if index is not None:
        _check_index(path, index, places)
    return places


def _index(path: Path) -> dict[str, str] | None:
    """Tensor name -> file name of a sharded checkpoint; None where one file holds everything."""
    if (path / SINGLE).exists() or not (path / INDEX).exists():
        return None
    weight_map = read_json(path / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SplitError(f"{INDEX}: no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file or Path(file).name != file or file in (".", ".."):
            raise SplitError(f"{INDEX}: tensor {name!r} is said to be in {file!r}, which is not a file name")
    return weight_map


def _single(path: Path) -> str:
    """The one safetensors file of a directory."""
    if (path / SINGLE).exists():
        return SINGLE
    found = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".safetensors")
    if len(found) == 1:
        return found[0]
    if found:
        raise SplitError(f"{shown(path)}: {len(found)} safetensors files but no {INDEX}")
    pickled = any(entry.suffix in (".bin", ".pth", ".pt") for entry in path.iterdir())
    hint = ": pickled weights are not read: convert them to safetensors" if pickled else ""
    raise NotACheckpointError(f"{shown(path)}: no safetensors file{hint}")


def _check_index(path: Path, index: Mapping[str, str], places: Mapping[str, tuple[StoredTensor, SourceFile]]) -> None:
    """The index and the shards name the same tensors, in the same files."""
    absent = [name for name, file in index.items() if name not in places or places[name][1].path != path / file]
    if absent:
        raise MissingTensorError(f"{INDEX}: tensors that are not in the file it names: {_some(absent)}")
    unlisted = [name for name in places if name not in index]
    if unlisted:
        raise SplitError(f"{INDEX}: does not list tensors that the files hold: {_some(unlisted)}")


def _text_tensors(
    places: dict[str, tuple[StoredTensor, SourceFile]], nested: bool
) -> dict[str, tuple[StoredTensor, SourceFile]]:
    """The text model's tensors under the names they have alone; all of them where there is no other model."""
    if not nested and not any(name.startswith(prefix) for name in places for prefix, _ in _TEXT_PREFIXES):
        return places
    out: dict[str, tuple[StoredTensor, SourceFile]] = {}
    for name, place in places.items():
        if name.startswith(_NOT_TEXT):
            continue
        alone = name
        for prefix, replacement in _TEXT_PREFIXES:
            if name.startswith(prefix):
                alone = replacement + name.removeprefix(prefix)
        if alone in out:
            raise DuplicateError(f"tensor {name!r}: a second tensor of the text model is called {alone!r}")
        out[alone] = place
    if not out:
        raise CheckpointError("no tensor of a text model among those of the checkpoint")
    return out


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(map(shown, listed[:4])) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
