"""Shapes of OpenAI answers, whole and streamed, for chat and for plain completions."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from goinfer.runtime.generate import Generation, Piece
from goinfer.runtime.interfaces import Tokenizer
from goinfer.version import VERSION

JSON = dict[str, Any]


def usage(generations: list[Generation]) -> JSON:
    """Tokens in and out, over all choices; every sampled token counts, also one that ended the text."""
    prompt = sum(len(g.prompt_ids) for g in generations)
    completion = sum(len(g.ids) for g in generations)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class ChatShape:
    """/v1/chat/completions."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def opening(self) -> JSON | None:
        """What the first chunk of a choice adds."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def part(self, text: str, pieces: list[Piece], with_logprobs: bool) -> JSON:
        """A chunk's share of a choice."""
        return {"delta": {"content": text}, "logprobs": self._logprobs(pieces) if with_logprobs else None}

    def closing(self) -> JSON:
        """The chunk that carries the finish reason."""
        return {"delta": {}, "logprobs": None}

    def full(self, text: str, pieces: list[Piece], with_logprobs: bool) -> JSON:
        """A whole choice."""
        return {
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(pieces) if with_logprobs else None,
        }

    def _logprobs(self, pieces: list[Piece]) -> JSON:
        entries = []
        for piece in shown(pieces):
            entry = self._entry(piece.id, piece.logprob)
            entry["top_logprobs"] = [self._entry(token, logprob) for token, logprob in piece.top]
            entries.append(entry)
        return {"content": entries, "refusal": None}

    def _entry(self, token: int, logprob: float | None) -> JSON:
        data = token_bytes(self._tokenizer, token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}


class CompletionShape:
    """/v1/completions; text offsets run over the whole choice, so one object serves one choice."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def opening(self) -> JSON | None:
        """Nothing comes before the first text."""
        return None

    def part(self, text: str, pieces: list[Piece], with_logprobs: bool) -> JSON:
        """A chunk's share of a choice."""
        return {"text": text, "logprobs": self._logprobs(pieces) if with_logprobs else None}

    def closing(self) -> JSON:
        """The chunk that carries the finish reason."""
        return {"text": "", "logprobs": None}

    full = part

    def _logprobs(self, pieces: list[Piece]) -> JSON:
        table: JSON = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for piece in shown(pieces):
            table["tokens"].append(self._name(piece.id))
            table["token_logprobs"].append(piece.logprob)
            table["top_logprobs"].append({self._name(token): logprob for token, logprob in piece.top})
            table["text_offset"].append(self._offset)
            self._offset += len(piece.text)
        return table

    def _name(self, token: int) -> str:
        """Text of a token; the keys of a JSON object must differ, so half a character is spelled in bytes."""
        data = token_bytes(self._tokenizer, token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


Shape = ChatShape | CompletionShape


def shown(pieces: list[Piece]) -> list[Piece]:
    """The pieces whose whole text is in the answer: a token of a stop string is not told either."""
    return [piece for piece in pieces if piece.shown]


def token_bytes(tokenizer: Tokenizer | None, token: int) -> bytes:
    """The bytes of a token; of its number where the bundle has no tokenizer."""
    return str(token).encode() if tokenizer is None else tokenizer.token_bytes(token)


@dataclass
class Reply:
    """One answer: what is common to its chunks. `seed` is how to get the same text again."""

    model: str
    shape: type[ChatShape] | type[CompletionShape]
    seed: int
    created: int = field(default_factory=lambda: int(time.time()))
    token: str = field(default_factory=lambda: secrets.token_hex(12))

    def _frame(self, kind: str) -> JSON:
        return {
            "id": f"{self.shape.prefix}-{self.token}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"goinfer-{VERSION}",
            "seed": self.seed,
        }

    def whole(self, choices: list[JSON], counts: JSON) -> JSON:
        """The body of an answer that is not streamed."""
        return {**self._frame(self.shape.whole), "choices": choices, "usage": counts}

    def chunk(self, index: int, share: JSON, finish_reason: str | None, include_usage: bool) -> JSON:
        """One event of a stream; with include_usage every chunk but the last says usage is null."""
        choice = {"index": index, **share, "finish_reason": finish_reason}
        frame = {**self._frame(self.shape.chunk), "choices": [choice]}
        return {**frame, "usage": None} if include_usage else frame

    def usage_chunk(self, counts: JSON) -> JSON:
        """The last event before [DONE], when it was asked for."""
        return {**self._frame(self.shape.chunk), "choices": [], "usage": counts}
