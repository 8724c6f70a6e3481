"""The tokenizer of a Hugging Face folder as a TokenizerSource: tokenizer.json, named by tokenizer_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from goinfer.compiler.checkpoints.hf_pre_tokenizer import is_byte_level, name_of, prefixes_space
from goinfer.compiler.checkpoints.json_files import parse_object, read_bytes, read_json
from goinfer.compiler.checkpoints.source import TokenizerSource
from goinfer.compiler.errors import UnsupportedError, VocabularyError

NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
"""GGUF's token types."""

_ROLES: Final = ("bos", "eos", "unk", "pad")


def tokenizer_source(path: Path, config: Mapping[str, Any]) -> TokenizerSource | None:
    """The tokenizer of a folder, None where it has no tokenizer.json.

    Raises UnsupportedError for a model other than BPE and VocabularyError where ids do not fit the embedding. Special
    tokens past the embedding (a text model that shares a multimodal one's tokenizer) are left out.
    """
    if not (path / "tokenizer.json").exists():
        return None
    raw = read_bytes(path / "tokenizer.json")
    data = parse_object(raw, "tokenizer.json")
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else model
        raise UnsupportedError(f"tokenizer.json: model {kind!r} is not supported: BPE is")
    rows = config.get("vocab_size")
    kept = _without_tokens_past(data, rows if isinstance(rows, int) else None)
    if kept is not data:
        data, raw = kept, json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
    tokens, types = _vocabulary(data)
    ids = _special_ids(path, data)
    first, last = _template_ends(data.get("post_processor"))
    if first is not None:
        ids["bos"] = first
    byte_level = is_byte_level(data)
    return TokenizerSource(
        kind="bpe" if byte_level else "spm",
        pre=name_of(data) if byte_level else "default",
        tokens=list(tokens),
        types=types,
        merges=_merges(model),
        bos=ids["bos"],
        eos=ids["eos"],
        unk=ids["unk"],
        pad=ids["pad"],
        add_bos=first is not None,
        add_eos=last is not None,
        add_space_prefix=prefixes_space(data),
        json=raw,
    )


def _added(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = data.get("added_tokens") or []
    sound = isinstance(added, list) and all(
        isinstance(row, dict) and isinstance(row.get("content"), str) and _is_id(row.get("id")) for row in added
    )
    if not sound:
        raise VocabularyError("tokenizer.json: added_tokens are not a list of tokens with ids")
    return list(added)


def _vocab(data: Mapping[str, Any]) -> dict[str, int]:
    vocab = data["model"].get("vocab")
    if not isinstance(vocab, dict) or not vocab or not all(_is_id(i) for i in vocab.values()):
        raise VocabularyError("tokenizer.json: model.vocab is not a table of token ids")
    return vocab


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _without_tokens_past(data: dict[str, Any], rows: int | None) -> dict[str, Any]:
    """The same data if every id has a row; without the special tokens that have none otherwise."""
    if rows is None:
        return data
    added = _added(data)
    past = [row for row in added if row["id"] >= rows]
    ordinary = [row["content"] for row in past if not row.get("special")]
    specials = {row["content"] for row in past}
    vocab = _vocab(data)
    ordinary += [text for text, i in vocab.items() if i >= rows and text not in specials]
    if ordinary:
        raise VocabularyError(
            f"tokenizer.json: {len(ordinary)} tokens have no row in the embedding of {rows}, the first {ordinary[0]!r}"
        )
    if not past:
        return data
    model = data["model"] | {"vocab": {text: i for text, i in vocab.items() if i < rows}}
    return data | {"added_tokens": [row for row in added if row["id"] < rows], "model": model}


def _vocabulary(data: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Spelling and GGUF type of every id; ids without a token are unused."""
    vocab, added = _vocab(data), _added(data)
    size = 1 + max([*vocab.values(), *(row["id"] for row in added)])
    if size > 2 * (len(vocab) + len(added)) + 65536:
        raise VocabularyError(f"tokenizer.json: {len(vocab)} tokens have ids up to {size - 1}")
    tokens, types = [""] * size, [UNUSED] * size
    fallback = bool(data["model"].get("byte_fallback"))
    bytes_ = {f"<0x{b:02X}>" for b in range(256)} if fallback else set()
    for text, i in vocab.items():
        if types[i] != UNUSED:
            raise VocabularyError(f"tokenizer.json: id {i} is both {tokens[i]!r} and {text!r}")
        tokens[i], types[i] = text, BYTE if text in bytes_ else NORMAL
    for row in added:
        i = row["id"]
        if types[i] != UNUSED and tokens[i] != row["content"]:
            raise VocabularyError(f"tokenizer.json: id {i} is both {tokens[i]!r} and {row['content']!r}")
        tokens[i], types[i] = row["content"], CONTROL if row.get("special") else USER_DEFINED
    return tokens, types


def _merges(model: Mapping[str, Any]) -> list[str]:
    """Merges as "left right"; newer files write pairs, whose parts may hold spaces and then stay out of this list."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise VocabularyError("tokenizer.json: model.merges is not a list")
    return [merge if isinstance(merge, str) else " ".join(map(str, merge)) for merge in merges]


def _special_ids(path: Path, data: Mapping[str, Any]) -> dict[str, int | None]:
    """bos, eos, unk and pad by the spellings in tokenizer_config.json or special_tokens_map.json."""
    spellings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path / name).exists():
            spellings |= {key: value for key, value in read_json(path / name).items() if value is not None}
    ids = {row["content"]: row["id"] for row in _added(data)}
    vocab = _vocab(data)
    found: dict[str, int | None] = {}
    for role in _ROLES:
        text = spellings.get(f"{role}_token")
        text = text.get("content") if isinstance(text, dict) else text
        found[role] = ids.get(text, vocab.get(text)) if isinstance(text, str) else None
    return found


def _template_ends(node: Any) -> tuple[int | None, int | None]:
    """The token that the post-processor puts before a text, and the one after it."""
    if not isinstance(node, dict):
        return None, None
    if node.get("type") == "Sequence":
        ends = [_template_ends(part) for part in node.get("processors", [])]
        return next((a for a, _ in ends if a is not None), None), next((b for _, b in ends if b is not None), None)
    if node.get("type") != "TemplateProcessing":
        return None, None
    try:
        parts = [part["SpecialToken"]["id"] if "SpecialToken" in part else None for part in node["single"]]
        ids = [None if name is None else int(node["special_tokens"][name]["ids"][0]) for name in parts]
    except (KeyError, IndexError, TypeError, ValueError):
        raise VocabularyError("tokenizer.json: post_processor: a template that names no token") from None
    return (ids[0], ids[-1]) if ids else (None, None)
