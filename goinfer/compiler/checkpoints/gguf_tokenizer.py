"""The tokenizer, chat template and generation defaults of GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from goinfer.compiler.checkpoints.source import TokenizerSource
from goinfer.compiler.errors import UnsupportedError, VocabularyError

KINDS: Final[Mapping[str, Literal["bpe", "spm"]]] = MappingProxyType({"gpt2": "bpe", "llama": "spm"})

_PREFIX: Final = "tokenizer.ggml."
_USED: Final = frozenset({
    "model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
    "eom_token_id", "unknown_token_id", "padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix",
})  # fmt: skip
_IRRELEVANT: Final = frozenset({
    "token_type_count", "seperator_token_id", "cls_token_id", "mask_token_id", "prefix_token_id", "suffix_token_id",
    "middle_token_id", "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id", "fim_pad_token_id",
    "fim_rep_token_id", "fim_sep_token_id",
})  # fmt: skip
_OFF: Final = frozenset({"add_sep_token", "remove_extra_whitespaces", "precompiled_charsmap"})
"""Keys that would change the ids; their false or empty value says nothing."""

_END_OF_TURN: Final = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "<|EOT|>", "<|eot|>", "<turn|>", "<end_of_utterance>", "<eos>", "</s>",
})  # fmt: skip
"""Control tokens that end an answer in every model that has them; files often name one of several."""

_CONTROL: Final = 3
_SAMPLING: Final[Mapping[str, str]] = MappingProxyType({
    "general.sampling.temp": "temperature", "general.sampling.top_k": "top_k", "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p", "general.sampling.penalty_repeat": "repetition_penalty",
})  # fmt: skip


def tokenizer_source(metadata: Mapping[str, Any], rows: int) -> TokenizerSource | None:
    """The tokenizer of the metadata, None where there is none. `rows` is the size of the embedding.

    Raises UnsupportedError naming an unknown model or key, VocabularyError for tables of unequal length, ids outside
    the vocabulary and more tokens than rows.
    """
    model = metadata.get(_PREFIX + "model")
    if model is None or model == "none":
        return None
    if model not in KINDS:
        raise UnsupportedError(f"tokenizer.ggml.model {model!r}: not supported: known are {', '.join(KINDS)}")
    _refuse_unknown(metadata)
    tokens: list[str | bytes] = _strings(metadata, "tokens", (str, bytes))
    if not tokens:
        raise VocabularyError("tokenizer.ggml.tokens: missing or empty")
    if len(tokens) > rows:
        raise VocabularyError(f"tokenizer: {len(tokens)} tokens, but the embedding has {rows} rows")
    spm = KINDS[model] == "spm"
    return TokenizerSource(
        kind=KINDS[model],
        pre=str(metadata.get(_PREFIX + "pre", "default")),
        tokens=tokens,
        scores=_column(metadata, "scores", tokens),
        types=_column(metadata, "token_type", tokens),
        merges=_strings(metadata, "merges") or None,
        bos=_id(metadata, "bos_token_id", tokens),
        eos=_id(metadata, "eos_token_id", tokens),
        unk=_id(metadata, "unknown_token_id", tokens),
        pad=_id(metadata, "padding_token_id", tokens),
        add_bos=_flag(metadata, "add_bos_token", spm),
        add_eos=_flag(metadata, "add_eos_token", False),
        add_space_prefix=_flag(metadata, "add_space_prefix", spm),
    )


def generation_defaults(metadata: Mapping[str, Any], source: TokenizerSource | None) -> dict[str, Any]:
    """Ids that end a text, bos and pad, and the sampling settings that the file recommends."""
    out: dict[str, Any] = {name: metadata[key] for key, name in _SAMPLING.items() if key in metadata}
    ends = [metadata.get(_PREFIX + key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    if source is not None:
        types = source.types or []
        ends += [
            i for i, token in enumerate(source.tokens)
            if token in _END_OF_TURN and i < len(types) and types[i] == _CONTROL
        ]  # fmt: skip
        out |= {"add_bos": source.add_bos}
        out |= {name: i for name, i in (("bos_token_id", source.bos), ("pad_token_id", source.pad)) if i is not None}
    out["eos_token_ids"] = list(dict.fromkeys(i for i in ends if i is not None))
    return out


def chat_template(metadata: Mapping[str, Any]) -> str | None:
    """The default chat template."""
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None


def _refuse_unknown(metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        name = key.removeprefix(_PREFIX)
        if key == name or name in _USED or name in _IRRELEVANT or (name in _OFF and not value):
            continue
        raise UnsupportedError(f"metadata key {key!r}: not supported: it could change how text becomes tokens")


def _strings(metadata: Mapping[str, Any], name: str, kinds: tuple[type, ...] = (str,)) -> list[Any]:
    values = metadata.get(_PREFIX + name, [])
    if not isinstance(values, list) or not set(map(type, values)) <= set(kinds):
        raise VocabularyError(f"tokenizer.ggml.{name}: not a list of strings")
    return values


def _column(metadata: Mapping[str, Any], name: str, tokens: list[str | bytes]) -> list[Any] | None:
    """One number a token; None where the file has no such table."""
    values = metadata.get(_PREFIX + name)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != len(tokens):
        raise VocabularyError(f"tokenizer.ggml.{name}: not one value for each of the {len(tokens)} tokens")
    if not set(map(type, values)) <= {bool, int, float} or not all(map(math.isfinite, values)):
        raise VocabularyError(f"tokenizer.ggml.{name}: not all numbers")
    return values


def _id(metadata: Mapping[str, Any], name: str, tokens: list[str | bytes]) -> int | None:
    value = metadata.get(_PREFIX + name)
    if value in (None, 0xFFFFFFFF, -1):  # how converters write "none"
        return None
    if not isinstance(value, int) or not 0 <= value < len(tokens):
        raise VocabularyError(f"tokenizer.ggml.{name}: {value!r} is not a token of the vocabulary")
    return value


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(_PREFIX + name, default)
    if not isinstance(value, bool):
        raise VocabularyError(f"tokenizer.ggml.{name}: {value!r} is not true or false")
    return value
