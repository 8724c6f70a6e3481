"""From a prompt to pieces of text: what one request does between two forwards, and the loop for one request.

`Generation` holds everything a request needs beyond its slot: sampler, detokeniser, stop strings, counters.
The server steps many of them as one batch, `generate` steps one; both give the same pieces.
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from goinfer.runtime import checks
from goinfer.runtime.errors import ArgumentError, ContextError
from goinfer.runtime.interfaces import Engine, Slot, Vocabulary
from goinfer.runtime.sampler import Choice, Sampler, SamplingParams
from goinfer.runtime.stops import StopScanner

FinishReason = Literal["stop", "length"]

NO_TOKEN = -1
_PRIMING = 4  # prompt tokens that can matter to the text after them: a character has at most 4 bytes


@dataclass(frozen=True)
class Piece:
    """One token and the text it completed. `finish_reason` is set on the last piece and on no other.

    `shown` is False when the token's own text is not (all of) the output: an end-of-sequence token, or the
    token in which a stop string begins. id is -1 in the one piece of a request that had no room for a token.
    """

    id: int
    text: str
    logprob: float | None = None
    finish_reason: FinishReason | None = None
    top: tuple[tuple[int, float], ...] = ()
    shown: bool = True


class Generation:
    """One request's output as it grows. Feed the prompt, then hand each row of logits to `push`.

    Tokens after the prompt are at most max_new_tokens, and prompt and output together at most `context`.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        vocabulary: Vocabulary,
        context: int,
        *,
        continues: bool = False,
    ) -> None:
        self.prompt_ids = checks.token_ids("prompt", prompt_ids)
        _check_prompt(self.prompt_ids, vocabulary, context)
        if params.stop and vocabulary.tokenizer is None:
            raise ArgumentError("stop", "this bundle has no tokenizer, so stop strings cannot be matched")
        self.params = params
        self.sampler = Sampler(params, vocabulary.size, self.prompt_ids)
        self.limit = context - len(self.prompt_ids)
        if params.max_new_tokens is not None:
            self.limit = min(self.limit, params.max_new_tokens)
        self.ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._eos = frozenset() if params.ignore_eos else vocabulary.eos
        self._special = vocabulary.tokenizer.special_ids if vocabulary.tokenizer else frozenset()
        self._stream = vocabulary.tokenizer.stream() if vocabulary.tokenizer else None
        for token in self.prompt_ids[-_PRIMING:] if continues else ():
            self._text(token)
        self._stops = StopScanner(tuple(params.stop))
        self._held: deque[Piece] = deque()  # pieces whose text may still belong to a stop string
        self._safe = 0  # characters at the front of the held pieces that certainly do not

    @property
    def seed(self) -> int:
        """The seed in use, also when the request gave none."""
        return self.sampler.seed

    def begin(self) -> list[Piece]:
        """Ends a request that has no room for a token; to be called before any forward."""
        if self.limit > 0:
            return []
        self.finish_reason = "length"
        return [Piece(NO_TOKEN, "", finish_reason="length", shown=False)]

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is all that is asked of the model: `push_token` then does without logits."""
        return self.sampler.greedy

    def push(self, logits: np.ndarray) -> list[Piece]:
        """Sample from one row; the pieces that can be shown now (none while a stop string may be forming)."""
        return self._add(self.sampler.sample(logits))

    def push_token(self, token: int) -> list[Piece]:
        """As `push`, for the likeliest token of a row. Raises LogitsError for -1: the row was not usable."""
        return self._add(self.sampler.take(token))

    def _add(self, choice: Choice) -> list[Piece]:
        self.ids.append(choice.id)
        if choice.id in self._eos:
            return self._end_of_sequence(choice)
        piece = Piece(choice.id, self._text(choice.id), choice.logprob, top=choice.top)
        self._held.append(piece)
        scan = self._stops.push(piece.text)
        self._safe += scan.safe
        released = self._release()
        if scan.hit:
            return [*released, self._cut()]
        if len(self.ids) < self.limit:
            return released
        self.finish_reason = "length"
        released += self._held
        return [*released[:-1], replace(released[-1], finish_reason="length")]

    def _text(self, token: int) -> str:
        if self._stream is None or token in self._special:
            return ""
        return self._stream.push(token)

    def _release(self) -> list[Piece]:
        released = []
        while self._held and len(self._held[0].text) <= self._safe:
            piece = self._held.popleft()
            self._safe -= len(piece.text)
            released.append(piece)
        return released

    def _end_of_sequence(self, choice: Choice) -> list[Piece]:
        self.finish_reason = "stop"
        last = Piece(choice.id, "", choice.logprob, "stop", choice.top, shown=False)
        return [*self._held, last]

    def _cut(self) -> Piece:
        """The piece in which a stop string begins, without it; later pieces are part of the stop string."""
        self.finish_reason = "stop"
        piece = self._held[0]
        return replace(piece, text=piece.text[: self._safe], finish_reason="stop", shown=False)


def generate(
    engine: Engine,
    vocabulary: Vocabulary,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    slot: Slot | None = None,
    continues: bool = False,
) -> Generator[Piece, None, None]:
    """The pieces of one request. Bad requests raise here, before the first piece is asked for.

    With `slot`, the slot must already hold a beginning of the prompt (all of it but one token at most), the
    rest is fed, and the slot stays open; otherwise a slot is made, and closed when the iterator ends or is
    closed.
    """
    generation = Generation(prompt_ids, params, vocabulary, engine.context, continues=continues)
    return run(engine, generation, slot)


def run(engine: Engine, generation: Generation, slot: Slot | None = None) -> Generator[Piece, None, None]:
    """As `generate`, for a Generation the caller keeps, to read its seed or its counters."""
    last = generation.begin()
    if last:
        yield from last
        return
    own = engine.new_slot() if slot is None else slot
    try:
        feed = generation.prompt_ids[own.length :]
        while generation.finish_reason is None:
            while len(feed) > engine.max_rows:  # in pieces, so that an interrupt takes effect between them
                engine.forward([(own, feed[: engine.max_rows])], wanted="none")
                feed = feed[engine.max_rows :]
            if generation.greedy:
                pieces = generation.push_token(int(engine.greedy([(own, feed)], generation.sampler.vocab_size)[0]))
            else:
                pieces = generation.push(engine.forward([(own, feed)], wanted="last")[0])
            yield from pieces
            feed = generation.ids[-1:]
    finally:
        if slot is None:
            own.close()


def _check_prompt(prompt_ids: Sequence[int], vocabulary: Vocabulary, context: int) -> None:
    if not prompt_ids:
        raise ArgumentError("prompt", "no tokens: give at least one")
    if len(prompt_ids) > context:
        raise ContextError(context, len(prompt_ids))
    low, high = min(prompt_ids), max(prompt_ids)
    if low < 0 or high >= vocabulary.size:
        bad = low if low < 0 else high
        raise ArgumentError("prompt", f"token id {checks.told(bad)} is outside the vocabulary of {vocabulary.size}")
