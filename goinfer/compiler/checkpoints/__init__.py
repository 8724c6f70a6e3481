"""Readers of checkpoints: GGUF files and safetensors directories."""

from goinfer.compiler.checkpoints.open import open_checkpoint
from goinfer.compiler.checkpoints.source import Checkpoint, TensorInfo, TokenizerSource

__all__ = ["Checkpoint", "TensorInfo", "TokenizerSource", "open_checkpoint"]
