"""The committed English text that real checkpoints are measured on, and the prompts cut from it."""

from typing import Any

from goinfer.gates.paths import data_folder

PROMPT_TOKENS = (9, 70, 560)
"""Lengths of the prompts of a real checkpoint; the longest is longer than the 512 positions of Gemma 3's window."""


def ordinary_text() -> str:
    """About nine hundred words of plain prose, written for this repository."""
    return (data_folder() / "text" / "ordinary.txt").read_text(encoding="utf-8")


def text_ids(model: Any) -> list[int]:
    """The text as the bundle's tokenizer encodes it, beginning-of-sequence token included where the model wants one."""
    return [int(i) for i in model.tokenizer.encode(ordinary_text())]


def text_prompts(model: Any) -> list[list[int]]:
    """Prompts of PROMPT_TOKENS tokens from different places of the text, each with the text's first token in front."""
    ids = text_ids(model)
    starts = (len(ids) // 2, len(ids) // 4, 1)
    return [[ids[0], *ids[start : start + n - 1]] for start, n in zip(starts, PROMPT_TOKENS, strict=True)]
