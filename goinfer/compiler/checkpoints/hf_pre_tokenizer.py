"""Recognising the pre-tokenizer of a tokenizer.json by its structure, and giving it GGUF's name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from goinfer.compiler.tokenizer_pre import PRE_TOKENIZERS
from goinfer.compiler.tokenizer_spec import GPT2_PATTERN

PREFERRED: Final = ("gpt-2", "smollm", "llama-bpe", "qwen2")
"""Of several names for one way of cutting text, the one that is used."""

Json = Mapping[str, Any]


def is_byte_level(data: Json) -> bool:
    """True for BPE over GPT-2's byte alphabet, False for BPE over characters with escaped spaces."""
    return any(part.get("type") == "ByteLevel" for part in _parts(data.get("pre_tokenizer"), "pretokenizers"))


def prefixes_space(data: Json) -> bool:
    """True if a text gets a space in front of its first word."""
    normalizers = _parts(data.get("normalizer"), "normalizers")
    if any(part.get("type") == "Prepend" for part in normalizers):
        return True
    for part in _parts(data.get("pre_tokenizer"), "pretokenizers"):
        if part.get("type") == "Metaspace":
            old = "always" if part.get("add_prefix_space", True) else "never"
            return bool(part.get("prepend_scheme", old) != "never")
        if part.get("type") == "ByteLevel":
            return bool(part.get("add_prefix_space"))
    return False


def name_of(data: Json) -> str:
    """GGUF's name of a byte-level pre-tokenizer, or "unknown: ..." with its structure."""
    parts = _parts(data.get("pre_tokenizer"), "pretokenizers")
    found = _digits_and_pattern(parts)
    nfc = any(part.get("type") == "NFC" for part in _parts(data.get("normalizer"), "normalizers"))
    if found is not None:
        for name in (*PREFERRED, *PRE_TOKENIZERS):
            known = PRE_TOKENIZERS[name]
            if (known.digits, known.pattern, known.nfc) == (*found, nfc):
                return name
    return "unknown: " + json.dumps(data.get("pre_tokenizer"), sort_keys=True)[:200]


def _digits_and_pattern(parts: list[Json]) -> tuple[bool, str] | None:
    """Whether digits are isolated first, and the pattern; None for any other structure."""
    if not parts or parts[-1].get("type") != "ByteLevel" or parts[-1].get("add_prefix_space"):
        return None
    cuts = list(parts[:-1])
    digits = bool(cuts) and cuts[0].get("type") == "Digits" and bool(cuts[0].get("individual_digits"))
    cuts = cuts[1:] if digits else cuts
    patterns = []
    for cut in cuts:
        pattern = cut.get("pattern")
        isolated = cut.get("behavior") == "Isolated" or (cut.get("behavior") == "Removed" and cut.get("invert"))
        if cut.get("type") != "Split" or not isolated or not isinstance(pattern, dict) or "Regex" not in pattern:
            return None
        patterns.append(pattern["Regex"])
    if parts[-1].get("use_regex", True):
        patterns.append(GPT2_PATTERN)
    return (digits, patterns[0]) if len(patterns) == 1 else None


def _parts(node: Any, key: str) -> list[Json]:
    """The components of a node, sequences unfolded."""
    if not isinstance(node, dict):
        return []
    if node.get("type") == "Sequence":
        return [part for inner in node.get(key, []) for part in _parts(inner, key)]
    return [node]
