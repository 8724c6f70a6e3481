"""tokenizer.json (Hugging Face tokenizers) -> TokenizerSpec. BPE only; a component that is not known is refused."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from goinfer.compiler.errors import CheckpointError, UnsupportedError
from goinfer.compiler.tokenizer_gguf import spm_bytes
from goinfer.compiler.tokenizer_json_text import (
    TextRules,
    added_spelling,
    read_decoder,
    read_normalizer,
    read_pre_tokenizer,
)
from goinfer.compiler.tokenizer_merges import merge_ids
from goinfer.compiler.tokenizer_spec import Added, TokenizerFields, TokenizerSpec, byte_alphabet, spelled_bytes

Json = Mapping[str, Any]


def spec_from_json(src: TokenizerFields) -> TokenizerSpec:
    """The spec of `src.json`; the special ids are those of `src`."""
    data = _parsed(src.json or b"")
    try:
        return _spec(src, data)
    except (KeyError, TypeError, IndexError, AttributeError) as e:
        raise CheckpointError(f"tokenizer.json: a component is malformed ({type(e).__name__}: {e})") from None


def _spec(src: TokenizerFields, data: Json) -> TokenizerSpec:
    model = data.get("model") or {}
    _check_model(model)
    normalizer = read_normalizer(data.get("normalizer"))
    rules = read_pre_tokenizer(data.get("pre_tokenizer"), normalizer)
    rules = read_decoder(data.get("decoder"), rules)
    vocab: dict[str, int] = model["vocab"]
    added = _read_added(data.get("added_tokens") or [], rules)
    prefix, suffix = _read_ends(data.get("post_processor"), src)
    spelled = _by_id(vocab, added)
    if rules.kind == "byte_level":
        alphabet = byte_alphabet()
        tokens = [spelled_bytes(text, alphabet) for text in spelled]
        byte_ids = [vocab.get(ch) for ch, _ in sorted(alphabet.items(), key=lambda item: item[1])]
        byte_tokens: frozenset[int] = frozenset()
    else:
        byte_ids = [vocab.get(f"<0x{b:02X}>") for b in range(256)] if model.get("byte_fallback") else [None] * 256
        values = {i: b for b, i in enumerate(byte_ids) if i is not None}
        byte_ids = byte_ids if None not in byte_ids else [None] * 256
        tokens, byte_tokens = spm_bytes(spelled, values), frozenset(values)
    unk = model.get("unk_token")
    return TokenizerSpec(
        kind=rules.kind,
        tokens=tokens,
        byte_ids=byte_ids,
        merges=merge_ids(model["merges"], vocab),
        added=added,
        stages=rules.stages,
        normalizer=rules.normalizer,
        prefix_space=rules.prefix_space,
        split_spaces=rules.split_spaces,
        strip_left=rules.strip_left,
        ignore_merges=bool(model.get("ignore_merges")),
        fuse_unk=bool(model.get("fuse_unk")),
        unk=vocab.get(unk) if unk is not None else None,
        bos=src.bos,
        eos=src.eos,
        pad=src.pad,
        prefix_ids=prefix,
        suffix_ids=suffix,
        byte_tokens=byte_tokens,
    )


def _parsed(raw: bytes) -> Json:
    try:
        data = json.loads(raw)
    except ValueError as e:
        raise CheckpointError(f"tokenizer.json: not JSON ({e})") from None
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise CheckpointError("tokenizer.json: there is no object `model`")
    return data


def _check_model(model: Json) -> None:
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise UnsupportedError(f"tokenizer.json: model {kind!r} is not supported (supported: BPE)")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedError(f"tokenizer.json: model.{key} = {model[key]!r} is not supported")
    if not isinstance(model.get("vocab"), dict) or not isinstance(model.get("merges"), list):
        raise CheckpointError("tokenizer.json: model has no vocab or no merges")


def _by_id(vocab: Mapping[str, int], added: Sequence[Added]) -> list[str]:
    """Spelling by id, empty where an id has no token."""
    ids = [*vocab.values(), *(a.id for a in added)]
    if not ids or min(ids) < 0 or max(ids) > 2 * len(ids) + 65536:
        raise CheckpointError("tokenizer.json: the ids of the vocabulary are not a range")
    spelled = [""] * (max(ids) + 1)
    for text, token in vocab.items():
        spelled[token] = text
    for a in added:
        spelled[a.id] = a.text
    return spelled


def _read_added(rows: Sequence[Json], rules: TextRules) -> list[Added]:
    out = []
    for row in rows:
        if row.get("single_word"):
            raise UnsupportedError(f"tokenizer.json: added token {row['content']!r} has single_word, not supported")
        text = added_spelling(row["content"], rules) if row.get("normalized") else row["content"]
        flags = {key: bool(row.get(key)) for key in ("special", "lstrip", "rstrip", "normalized")}
        if text:
            out.append(Added(row["id"], text, **flags))
    return out


def _read_ends(node: Json | None, src: TokenizerFields) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after a text: the template where there is one, else the flags of the source."""
    flags = ((src.bos,) if src.add_bos else (), (src.eos,) if src.add_eos else ())
    default = tuple(i for i in flags[0] if i is not None), tuple(i for i in flags[1] if i is not None)
    if node is None or node["type"] == "ByteLevel":
        return default
    if node["type"] == "Sequence":
        for part in node["processors"]:
            if part["type"] != "ByteLevel":
                return _read_ends(part, src)
        return default
    if node["type"] != "TemplateProcessing":
        raise UnsupportedError(f"tokenizer.json: post-processor {node['type']!r} is not supported")
    ends: tuple[list[int], list[int]] = ([], [])
    side = 0
    for item in node["single"]:
        if "Sequence" in item:
            side = 1
        else:
            ends[side].extend(node["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    return tuple(ends[0]), tuple(ends[1])
