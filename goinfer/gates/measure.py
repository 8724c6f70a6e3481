"""What a loaded bundle computes against goldens: logits, hidden states, greedy text, decode against prefill.

Needs a bundle, goldens and the base dependencies: no compiler, no torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from goinfer.gates.compare import F32, Bars, Comparison, compare_hidden, compare_logits
from goinfer.gates.goldens import Goldens, Prompt
from goinfer.runtime.errors import LogitsError

DECODED = 320
"""Positions at a prompt's end that are also computed token by token; a tiny prompt is decoded from its first."""


class Runner(Protocol):
    """The part of a Model that is measured."""

    engine: Any

    def forward(self, ids: Sequence[int], hidden_states: bool = False) -> Any:
        """Logits of every position, and hidden states if asked for."""

    def generate(self, prompt: Any, **params: Any) -> Any:
        """Pieces of a continuation."""


@dataclass(frozen=True)
class PromptFigures:
    """One prompt. `decode_difference` is the first position whose decode bytes are not the prefill's, or None."""

    logits: Comparison
    hidden: list[Comparison]
    hidden_scaled: list[Comparison]
    greedy: list[int]
    greedy_reference: list[int]
    decode_difference: int | None
    repeat_difference: bool

    @property
    def greedy_agreement(self) -> int:
        """Length of the common beginning of the two continuations."""
        pairs = list(zip(self.greedy, self.greedy_reference, strict=False))
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))

    def failures(self, bars: Bars) -> list[str]:
        """One line for each thing that is not as it must be."""
        out = self.logits.failures(bars)
        for state in (*self.hidden, *self.hidden_scaled):
            out += state.failures(bars)
        if self.greedy != self.greedy_reference:
            out.append(f"greedy: token {self.greedy_agreement} of {len(self.greedy_reference)} differs")
        if self.decode_difference is not None:
            out.append(f"decode: bytes differ from prefill's at position {self.decode_difference}")
        if self.repeat_difference:
            out.append("repeat: logits with and without hidden states differ in bytes")
        return out


def measure(model: Runner, goldens: Goldens) -> list[PromptFigures]:
    """Run every prompt of the goldens through a model."""
    return [measure_prompt(model, prompt) for prompt in goldens.prompts]


def measure_prompt(model: Runner, prompt: Prompt) -> PromptFigures:
    """One prompt: one prefill with hidden states, one without, a greedy continuation, and a decode."""
    ids = [int(i) for i in prompt.ids]
    logits, hidden = model.forward(ids, hidden_states=True)
    plain, scaled = compare_hidden(hidden[:, prompt.rows], prompt.hidden)
    again = model.forward(ids)
    return PromptFigures(
        compare_logits(logits, prompt.logits), plain, scaled,
        greedy(model, ids, len(prompt.greedy)), prompt.greedy.tolist(),
        decode_difference(model.engine, ids, logits), again.tobytes() != logits.tobytes(),
    )  # fmt: skip


def greedy(model: Runner, ids: list[int], count: int) -> list[int]:
    """The model's own greedy continuation, cut short where its logits are not usable."""
    out: list[int] = []
    try:
        for piece in model.generate(ids, max_new_tokens=count, temperature=0.0, ignore_eos=True):
            out.append(int(piece.id))
    except LogitsError:
        pass
    return out


def decode_difference(engine: Any, ids: list[int], logits: F32) -> int | None:
    """The first position whose logits, computed one token a forward, differ in a byte from `logits`."""
    start = max(0, len(ids) - DECODED)
    with engine.new_slot() as slot:
        if start:
            engine.forward([(slot, ids[:start])], wanted="none")
        for position in range(start, len(ids)):
            row = engine.forward([(slot, ids[position : position + 1])])[0]
            if row.tobytes() != logits[position].tobytes():
                return position
    return None


def summary(figures: Sequence[PromptFigures], bars: Bars) -> dict[str, Any]:
    """The figures of all prompts as one row of the manifest: every `worst` is over all positions and prompts."""
    hidden = [h for f in figures for h in f.hidden]
    scaled = [h for f in figures for h in f.hidden_scaled]
    worst_hidden = max(hidden, key=_badness)
    return {
        "prompts": len(figures),
        "positions": sum(f.logits.positions for f in figures),
        "same_next": _mean(figures, lambda c: c.same_next),
        "worst_cosine": _least([f.logits.worst_cosine for f in figures]),
        "worst_rel_l2": _most([f.logits.worst_rel_l2 for f in figures]),
        "mean_kl": _mean(figures, lambda c: c.mean_kl),
        "hidden_worst_cosine": _least([h.worst_cosine for h in hidden]),
        "hidden_worst_rel_l2": _most([h.worst_rel_l2 for h in hidden]),
        "hidden_worst_at": worst_hidden.what.removeprefix("hidden "),
        "hidden_scaled_worst_rel_l2": _most([h.worst_rel_l2 for h in scaled]),
        "hidden_positions": sum(f.hidden[0].positions for f in figures),
        "greedy_equal": f"{sum(f.greedy == f.greedy_reference for f in figures)}/{len(figures)}",
        "greedy_tokens": sum(len(f.greedy_reference) for f in figures),
        "decode_equals_prefill": all(f.decode_difference is None for f in figures),
        "least_gap": _least([f.logits.least_gap or 0.0 for f in figures]),
        "bars": {"same_next": bars.same_next, "cosine": bars.cosine, "rel_l2": bars.rel_l2},
    }  # fmt: skip


def _mean(figures: Sequence[PromptFigures], pick: Callable[[Comparison], float | None]) -> float:
    """Mean over all positions of a figure that is a mean over the positions of each prompt."""
    total = sum(f.logits.positions for f in figures)
    return sum((pick(f.logits) or 0.0) * f.logits.positions for f in figures) / total


def _badness(figures: Comparison) -> float:
    return float("inf") if np.isnan(figures.worst_rel_l2) else figures.worst_rel_l2


def _least(values: Sequence[float]) -> float:
    return float(np.min(values))


def _most(values: Sequence[float]) -> float:
    return float(np.max(values))
