"""Safetensors files and folders byte by byte; shares no code with the reader or the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def container(header: Any, data: bytes, length: int | None = None) -> bytes:
    """A file with this header (any JSON value, or raw bytes) and this data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def file_of(tensors: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """A valid file; each tensor is (dtype, array of the stored bits)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, array) in tensors.items():
        header[name] = entry(dtype, list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return container(header, data)


def weights(*names: str, seed: int = 0) -> dict[str, tuple[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {name: ("F32", rng.standard_normal((6, 8)).astype(np.float32)) for name in names}


CONFIG = {
    "model_type": "llama", "vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "rope_theta": 10000.0,
}  # fmt: skip


def folder(path: Path, files: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    """A checkpoint directory. Values: bytes, or something to write as JSON."""
    path.mkdir(exist_ok=True)
    for name, content in {"config.json": CONFIG if config is None else config, **files}.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (path / name).write_bytes(raw)
    return path
