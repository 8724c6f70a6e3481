"""Opening whatever checkpoint a path leads to."""

from __future__ import annotations

import os
from pathlib import Path

from goinfer.bundle_format.errors import shown
from goinfer.compiler.checkpoints.gguf import open_gguf
from goinfer.compiler.checkpoints.safetensors import open_safetensors
from goinfer.compiler.checkpoints.source import Checkpoint
from goinfer.compiler.errors import NotACheckpointError


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """A GGUF file (any part of a split one), or a directory with config.json and safetensors files.

    Everything but the weights is read and checked. Raises CheckpointError or UnsupportedError naming file and cause.
    """
    path = Path(path)
    if path.is_dir():
        return open_safetensors(path)
    if not path.exists():
        raise NotACheckpointError(f"{shown(path)}: no such file or directory")
    if path.suffix == ".safetensors":
        raise NotACheckpointError(f"{shown(path)}: one file of a checkpoint: give the directory that has config.json")
    return open_gguf(path)
