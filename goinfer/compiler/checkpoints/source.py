"""What a checkpoint is to the rest of the compiler: config, lazy tensors, tokenizer data. Data and protocols only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from goinfer.compiler.checkpoints.config_view import ConfigView


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor: shape in NumPy order (a linear layer is [out, in]), and the source's own name of its type."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer as data, whatever file it came from.

    `kind` is the algorithm: "bpe" merges ranked pairs of byte spellings, "spm" works on characters with escaped spaces
    and merges by token scores, or by ranked pairs where `merges` are given. `pre` names how text is cut up before
    that, in the names of GGUF files; "spm" has "default". A token is `bytes` where the file has no valid UTF-8.
    `types` are GGUF's (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte). `json` is the whole
    tokenizer.json where the checkpoint has one: it also says what this summary leaves out.
    """

    kind: Literal["bpe", "spm"]
    pre: str
    tokens: list[str | bytes]
    scores: list[float] | None = None
    types: list[int] | None = None
    merges: list[str] | None = None
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    pad: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    json: bytes | None = None


class Checkpoint(Protocol):
    """A model's files, opened and checked; weights are read only when asked for."""

    @property
    def path(self) -> Path:
        """The file or directory that was opened."""

    @property
    def kind(self) -> Literal["gguf", "safetensors"]:
        """Which reader this is; tensor names follow it."""

    @property
    def architecture(self) -> str:
        """GGUF's general.architecture or the text model's model_type."""

    @property
    def config(self) -> ConfigView:
        """The config in the spelling of transformers 5, whatever the source's own."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensor name -> its entry, in file order."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows [start, stop) along the first axis as float32. Raises NonFiniteError naming tensor and index."""

    def read_blocks(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.uint8] | None:
        """The same rows as the source's own quantised blocks [rows, bytes]; None for a type without blocks."""

    @property
    def tokenizer(self) -> TokenizerSource | None:
        """The tokenizer, None where the checkpoint has none."""

    @property
    def chat_template(self) -> str | None:
        """The default chat template's source."""

    @property
    def generation(self) -> dict[str, Any]:
        """eos_token_ids (a list), and where given bos_token_id, pad_token_id, add_bos and sampling defaults."""

    def close(self) -> None:
        """Close the files. Reading afterwards is an error."""
