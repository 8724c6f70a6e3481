"""What generation and the server need of an engine and a tokenizer; tests put in small ones of their own."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Slot(Protocol):
    """State of one sequence inside an engine."""

    @property
    def length(self) -> int:
        """Positions filled so far."""

    def close(self) -> None:
        """Give the memory back; allowed more than once."""


class Engine(Protocol):
    """Runs rows of several slots at once."""

    @property
    def context(self) -> int:
        """Positions one slot can hold."""

    @property
    def max_rows(self) -> int:
        """Ids one forward can take, over all slots."""

    def new_slot(self) -> Slot:
        """An empty sequence."""

    def forward(self, batch: list[tuple[Any, list[int]]], wanted: str = "last") -> np.ndarray:
        """Append ids to slots; float32 logits of each entry's last id, rows in the order of `batch`."""

    def greedy(self, batch: list[tuple[Any, list[int]]], choices: int) -> np.ndarray:
        """Append ids to slots; the likeliest of the first `choices` ids after each entry, -1 for unusable logits."""


class TextStream(Protocol):
    """Incremental detokeniser."""

    def push(self, token: int) -> str:
        """The characters that this token completed."""


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text, if there is one."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens: they have no text of their own in an output."""

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of `text`."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for."""

    def stream(self) -> TextStream:
        """A fresh detokeniser."""


@dataclass(frozen=True)
class Vocabulary:
    """What generation knows about a model's tokens. `size` counts the ids that may be sampled.

    Without a tokenizer every piece has an empty text, and stop strings are refused.
    """

    size: int
    eos: frozenset[int]
    tokenizer: Tokenizer | None
