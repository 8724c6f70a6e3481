"""Logits to a token: penalties, temperature, truncation, one seeded draw.

Order, as in Hugging Face transformers: penalties and bias, temperature, top-k, top-p over what top-k left,
min-p. The draw uses raw Philox output, so a seed gives the same text whatever numpy release is installed.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from goinfer.runtime import checks
from goinfer.runtime.errors import ArgumentError, LogitsError

# guesses at how far below the peak (in logits) the nucleus ends; exactness never depends on them
_NUCLEUS_GUESSES = (2.0, 4.0, 8.0, 16.0)
# dividing by less than this says nothing but "the largest", and float32 would overflow
_GREEDY_BELOW = 1e-5

MAX_COUNT = 2**31 - 1
"""The largest count or token id of a request."""

_NUMBERS = {
    "temperature": (0.0, 1000.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_INTEGERS = {
    "top_k": (0, MAX_COUNT),
    "seed": (-(2**63), 2**64 - 1),
    "max_new_tokens": (0, MAX_COUNT),
    "logprobs": (0, 100),
}
_OPTIONAL = ("seed", "max_new_tokens", "logprobs")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends. Every field is checked on construction.

    temperature 0 is greedy (ties go to the lowest id), and so is one below 1e-5.
    top_k 0, top_p 1, min_p 0 and repeat_penalty 1 are off.
    repeat_penalty looks at prompt and output, presence and frequency penalties at the output only.
    logprobs: None computes none; n >= 0 gives the chosen token's log-probability and the n most likely
    alternatives, all under the model's own distribution (before penalties, bias and temperature).
    max_new_tokens None means as many as the context holds, 0 means none.
    stop: one string or several; kept as a tuple.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_new_tokens: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    logprobs: int | None = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _NUMBERS.items():
            self._set(name, checks.number(name, getattr(self, name), low, high))
        if self.top_p == 0.0:
            raise ArgumentError("top_p", "0 leaves no token to choose: use a value above 0, or temperature 0")
        for name, (least, most) in _INTEGERS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                self._set(name, checks.whole(name, value, least, most))
        self._set("ignore_eos", checks.flag("ignore_eos", self.ignore_eos))
        self._set("stop", checks.texts("stop", self.stop))
        self._set("logit_bias", _checked_bias(self.logit_bias))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def sampling_params(**given: Any) -> SamplingParams:
    """SamplingParams of a caller's keyword arguments; an unknown one is named."""
    names = [field.name for field in fields(SamplingParams)]
    for name in given:
        if name not in names:
            from difflib import get_close_matches

            close = get_close_matches(name, names, 1, 0.5)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
            raise ArgumentError(name, f"unknown argument; {hint}")
    return SamplingParams(**given)


def _checked_bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise ArgumentError("logit_bias", f"want numbers by token id, not {checks.told(bias)}")
    checked: dict[int, float] = {}
    for token, amount in bias.items():
        try:
            checked[checks.whole("token id", token, 0, MAX_COUNT)] = checks.number("bias", amount, -100.0, 100.0)
        except ArgumentError as error:
            where = "" if error.name == "token id" else f" of token {token}"
            raise ArgumentError("logit_bias", f"{error.name}{where}: {error.problem}") from None
    return checked


def fresh_seed() -> int:
    """A seed nobody chose; 48 bits, because it is reported in JSON, where some readers keep only 53."""
    return int.from_bytes(os.urandom(6))


@dataclass(frozen=True)
class Choice:
    """A sampled token. `top` holds (id, logprob) of the most likely tokens, best first."""

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Chooses the tokens of one request, one call a position.

    `vocab_size` counts the ids that may be chosen: columns of the logits beyond it are padding and are not
    looked at. `seed` is the one in use, drawn from the system when the request gave none.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, prompt_ids: Sequence[int] = ()) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self.seed = fresh_seed() if params.seed is None else params.seed
        self._history = _History(prompt_ids if params.repeat_penalty != 1.0 else ())
        self._penalised = (
            params.repeat_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        for token in params.logit_bias:
            if not 0 <= token < vocab_size:
                raise ArgumentError("logit_bias", f"token {token} is outside the vocabulary of {vocab_size}")
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)

    @property
    def greedy(self) -> bool:
        """Whether a choice is the likeliest token and nothing else: no penalties, no bias, no probabilities."""
        p = self.params
        return (
            p.temperature < _GREEDY_BELOW and not self._penalised and not self._bias_ids.size and p.logprobs is None
        )

    def take(self, token: int) -> Choice:
        """The choice of the likeliest token, found by the program itself. Raises LogitsError for -1."""
        if not 0 <= token < self.vocab_size:
            raise LogitsError("logits: not finite: the model's output is not usable")
        return Choice(token, None, ())

    def sample(self, logits: np.ndarray) -> Choice:
        """The next token under `logits` ([>= vocab_size], not changed), remembered for the penalties."""
        raw = logits[: self.vocab_size]
        self._refuse_unusable(raw)
        scores = self._adjusted(raw)
        if self.params.temperature < _GREEDY_BELOW:
            token = int(scores.argmax())
        else:
            token = self._draw(scores)
        if self._penalised:
            self._history.add(token)
        if self.params.logprobs is None:
            return Choice(token, None, ())
        normaliser = _log_sum_exp(raw)
        top = tuple((int(i), float(raw[i]) - normaliser) for i in _best(raw, self.params.logprobs))
        return Choice(token, float(raw[token]) - normaliser, top)

    def _refuse_unusable(self, raw: np.ndarray) -> None:
        if raw.size < self.vocab_size:
            raise LogitsError(f"logits: {raw.size} columns for a vocabulary of {self.vocab_size}")
        peak = raw.max()  # NaN if any element is
        if not np.isfinite(peak):
            at = int(raw.argmax())  # argmax stops at the first NaN
            raise LogitsError(f"logits: {peak} at token {at}: the model's output is not usable")

    def _adjusted(self, raw: np.ndarray) -> np.ndarray:
        """`raw` itself when there is nothing to apply, else a changed copy."""
        if not self._penalised and not self._bias_ids.size:
            return raw
        p, scores = self.params, raw.copy()
        if self._penalised and self._history.ids.size:
            ids, counts = self._history.ids, self._history.counts
            seen, factor = scores[ids], np.float32(p.repeat_penalty)
            seen = np.where(seen > 0, seen / factor, seen * factor)
            seen -= np.float32(p.frequency_penalty) * counts + np.float32(p.presence_penalty) * (counts > 0)
            scores[ids] = seen
        scores[self._bias_ids] += self._bias
        return scores

    def _draw(self, scores: np.ndarray) -> int:
        p = self.params
        ids: np.ndarray | None = None
        if 0 < p.top_k < scores.size:
            kth = np.partition(scores, scores.size - p.top_k)[scores.size - p.top_k]
            ids = np.flatnonzero(scores >= kth)  # ties at the border stay, as in transformers
            scores = scores[ids]
        weights = _weights(scores, p.temperature)
        if p.top_p < 1.0:
            kept = _nucleus(weights, p.top_p)
            ids = kept if ids is None else ids[kept]
            weights = weights[kept]
        if p.min_p > 0.0:
            kept = np.flatnonzero(weights >= p.min_p * weights.max())
            ids = kept if ids is None else ids[kept]
            weights = weights[kept]
        index = self._pick(weights)
        return index if ids is None else int(ids[index])

    @cached_property
    def _bits(self) -> "np.random.Philox":
        """The stream of draws; numpy.random is imported for the first one, which greedy requests never need."""
        return np.random.Philox(key=self.seed % 2**64)

    def _pick(self, weights: np.ndarray) -> int:
        """An index with probability in proportion to its weight; consumes exactly one draw."""
        uniform = (int(self._bits.random_raw()) >> 11) * 2.0**-53
        ends = np.cumsum(weights, dtype=np.float64)
        # side="right" steps over weights of zero
        index = int(np.searchsorted(ends, uniform * ends[-1], side="right"))
        if index == weights.size:  # uniform * total rounded up to total
            index = int(np.flatnonzero(weights)[-1])
        return index


class _History:
    """Distinct tokens seen so far and how often each was generated (0: only in the prompt)."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._index: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.empty(64, np.float32)
        for token in prompt_ids:
            self._place(token)

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: len(self._index)]

    def add(self, token: int) -> None:
        at = self._place(token)  # may replace the arrays
        self._counts[at] += 1

    def _place(self, token: int) -> int:
        at = self._index.get(token)
        if at is None:
            at = len(self._index)
            if at == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
            self._index[token], self._ids[at], self._counts[at] = at, token, 0
        return at


def _weights(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Unnormalised probabilities, the largest being 1."""
    shifted = scores - scores.max()
    return np.exp(shifted / np.float32(temperature))


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Indices of the smallest set of largest weights that holds `top_p` of the mass, largest first."""
    wanted = top_p * float(weights.sum(dtype=np.float64))
    for guess in _NUCLEUS_GUESSES:  # sorting a few hundred candidates is 50 times faster than a vocabulary
        near = np.flatnonzero(weights >= math.exp(-guess))
        if float(weights[near].sum(dtype=np.float64)) >= wanted:
            break
    else:
        near = np.arange(weights.size)
    order = near[np.argsort(-weights[near], kind="stable")]
    ends = np.cumsum(weights[order], dtype=np.float64)
    return order[: int(np.searchsorted(ends, wanted, side="left")) + 1]


def _log_sum_exp(raw: np.ndarray) -> float:
    peak = float(raw.max())
    return peak + math.log(float(np.exp(raw - np.float32(peak)).sum(dtype=np.float64)))


def _best(raw: np.ndarray, n: int) -> np.ndarray:
    """Ids of the n largest logits, largest first, ties by id."""
    n = min(n, raw.size)
    if n == 0:
        return np.empty(0, np.int64)
    nth = np.partition(raw, raw.size - n)[raw.size - n]
    near = np.flatnonzero(raw >= nth)
    return near[np.argsort(-raw[near], kind="stable")][:n]
