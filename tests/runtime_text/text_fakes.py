"""An engine without weights and a tokenizer of bytes: both deterministic, both strict about how they are called."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from goinfer.runtime.interfaces import Vocabulary

# 256 bytes, then three specials and one unused id; logits are padded to 272 columns
BOS, EOS, TURN = 256, 257, 258
VOCAB, COLUMNS = 260, 272


class FakeSlot:
    def __init__(self, engine: "FakeEngine") -> None:
        self.ids: list[int] = []
        self.closed = False
        self._engine = engine

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        assert length <= len(self.ids)
        del self.ids[length:]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._engine.open_slots -= 1


class FakeEngine:
    """Logits of a row are a function of the ids before it and of nothing else.

    `next_token(ids)` names the token that gets the highest logit; without it a hash of the ids decides.
    """

    def __init__(
        self,
        next_token: Callable[[list[int]], int] | None = None,
        context: int = 128,
        max_rows: int = 16,
        delay: float = 0.0,
    ) -> None:
        self.context, self.max_rows, self.delay = context, max_rows, delay
        self.next_token = next_token
        self.open_slots = 0
        self.batches: list[list[int]] = []
        self.fail_with: Exception | None = None
        self._busy = threading.Lock()

    def new_slot(self) -> FakeSlot:
        self.open_slots += 1
        return FakeSlot(self)

    def forward(self, batch: Sequence[tuple[FakeSlot, Sequence[int]]], wanted: str = "last") -> np.ndarray:
        assert self._busy.acquire(blocking=False), "two forwards at once"
        try:
            return self._forward(batch, wanted)
        finally:
            self._busy.release()

    def greedy(self, batch: Sequence[tuple[FakeSlot, Sequence[int]]], choices: int) -> np.ndarray:
        logits = self.forward(batch)[:, :choices]
        return np.where(np.isfinite(logits.max(axis=1)), logits.argmax(axis=1), -1).astype(np.int32)

    def _forward(self, batch: Sequence[tuple[FakeSlot, Sequence[int]]], wanted: str) -> np.ndarray:
        assert wanted in ("last", "none") and batch
        assert sum(len(ids) for _, ids in batch) <= self.max_rows
        assert len({id(slot) for slot, _ in batch}) == len(batch), "a slot twice in one batch"
        self.batches.append([len(ids) for _, ids in batch])
        if self.fail_with is not None:
            raise self.fail_with
        if self.delay:
            time.sleep(self.delay)
        rows = []
        for slot, ids in batch:
            assert not slot.closed and ids
            slot.ids.extend(ids)
            assert len(slot.ids) <= self.context
            rows.append(self._row(slot.ids))
        return np.stack(rows) if wanted == "last" else np.empty((0, COLUMNS), np.float32)

    def _row(self, ids: list[int]) -> np.ndarray:
        noise = np.random.Philox(key=hash(tuple(ids)) & (2**64 - 1))
        row = np.random.Generator(noise).standard_normal(COLUMNS).astype(np.float32)
        row[VOCAB:] = 99.0  # padding must never win
        if self.next_token is not None:
            row[self.next_token(ids)] = 20.0
        return row


def script(prompt_length: int, tokens: Sequence[int]) -> Callable[[list[int]], int]:
    """A model that answers a prompt of this length with these tokens, then the end of the sequence."""

    def next_token(ids: list[int]) -> int:
        done = len(ids) - prompt_length
        return tokens[done] if 0 <= done < len(tokens) else EOS

    return next_token


class ByteStream:
    def __init__(self) -> None:
        import codecs

        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < 256 else "?"


class WordStream:
    """`strip`: one space at the very beginning is not text, as in vocabularies that mark the beginnings of words."""

    def __init__(self, words: dict[int, str], strip: bool = False) -> None:
        self._words, self._bytes, self._strip = words, ByteStream(), strip

    def push(self, token: int) -> str:
        text = self._words[token] if token in self._words else self._bytes.push(token)
        if text and self._strip:
            self._strip = False
            return text.removeprefix(" ")
        return text


class FakeTokenizer:
    """One token a byte; `words` gives single tokens a text of several characters."""

    vocab_size = VOCAB
    special_ids = frozenset({BOS, EOS, TURN})
    bos = BOS

    def __init__(self, words: dict[int, str] | None = None) -> None:
        self.words = words or {}

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        ids = list(text.encode())
        return [BOS, *ids] if add_special else ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        return b"".join(self.token_bytes(i) for i in ids if i < 256).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        if token in self.words:
            return self.words[token].encode()
        return bytes([token]) if token < 256 else f"<{token}>".encode()

    def stream(self) -> WordStream:
        return WordStream(self.words)


def vocabulary(words: dict[int, str] | None = None) -> Vocabulary:
    return Vocabulary(VOCAB, frozenset({EOS}), FakeTokenizer(words))
