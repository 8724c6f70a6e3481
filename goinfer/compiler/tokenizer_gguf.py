"""A tokenizer as GGUF stores it -> TokenizerSpec."""

from collections.abc import Mapping, Sequence

import numpy as np

from goinfer.compiler.errors import CheckpointError, UnsupportedError
from goinfer.compiler.tokenizer_merges import merge_ids, merges_from_scores
from goinfer.compiler.tokenizer_pre import pre_tokenizer
from goinfer.compiler.tokenizer_spec import (
    META_SPACE,
    Added,
    TokenizerFields,
    TokenizerSpec,
    byte_alphabet,
    spelled_bytes,
)

CONTROL, USER_DEFINED = 3, 4


def spec_from_gguf(src: TokenizerFields) -> TokenizerSpec:
    """The spec of a byte-level (`bpe`) or scored (`spm`) GGUF vocabulary."""
    tokens = [t.decode("utf-8", "surrogateescape") if isinstance(t, bytes) else t for t in src.tokens]
    types = list(src.types) if src.types is not None else [1] * len(tokens)
    if len(types) != len(tokens):
        raise CheckpointError(f"tokenizer: {len(tokens)} tokens but {len(types)} token types")
    if src.kind == "bpe":
        return _byte_level(src, tokens, types)
    if src.kind == "spm":
        return _spm(src, tokens, types)
    raise UnsupportedError(f"tokenizer: model {src.kind!r} is not supported (supported: bpe, spm)")


def _byte_level(src: TokenizerFields, tokens: list[str], types: list[int]) -> TokenizerSpec:
    pre = pre_tokenizer(src.pre)
    alphabet = byte_alphabet()
    if src.merges is None:
        raise CheckpointError("tokenizer: a bpe vocabulary needs merges and has none")
    added = _added(src, tokens, types)
    ids = {token: i for i, token in enumerate(tokens)}
    spelled = [spelled_bytes(token, alphabet) for token in tokens]
    for plain in added:
        spelled[plain.id] = plain.text.encode("utf-8")
    # A token with a character outside the alphabet is stored as plain text; merges name it by its spelling.
    spelling = {byte: ch for ch, byte in alphabet.items()}
    for i, token in enumerate(tokens):
        if not alphabet.keys() >= set(token):
            ids.setdefault("".join(spelling[b] for b in token.encode("utf-8", "surrogateescape")), i)
    return TokenizerSpec(
        kind="byte_level",
        tokens=spelled,
        byte_ids=[ids.get(spelling[b]) for b in range(256)],
        merges=merge_ids(src.merges, ids),
        added=added,
        stages=pre.stages(),
        normalizer=(("NFC",),) if pre.nfc else (),
        ignore_merges=pre.ignore_merges,
        bos=src.bos,
        eos=src.eos,
        pad=src.pad,
        prefix_ids=_ends(src.add_bos, src.bos),
        suffix_ids=_ends(src.add_eos, src.eos),
    )


def _spm(src: TokenizerFields, tokens: list[str], types: list[int]) -> TokenizerSpec:
    """Merges are not in the file: they follow from the vocabulary, ordered by score."""
    runs = [t == USER_DEFINED and len(text) > 1 and not text.strip(" ") for text, t in zip(tokens, types, strict=True)]
    spelled = [META_SPACE * len(text) if run else text for text, run in zip(tokens, runs, strict=True)]
    ids = {token: i for i, token in enumerate(spelled)}
    if src.merges is not None:
        merges = merge_ids(src.merges, ids)
    elif any(runs):
        # Gemma: runs of spaces are written as such, all user-defined tokens have one dummy score, and the order
        # of merging is the order of the vocabulary.
        merges = merges_from_scores(ids, -np.arange(len(spelled)))
    elif src.scores is not None:
        merges = merges_from_scores(ids, np.asarray(src.scores, dtype=np.float64))
    else:
        raise CheckpointError("tokenizer: an spm vocabulary needs scores or merges and has neither")
    byte_ids = [ids.get(f"<0x{b:02X}>") for b in range(256)]
    values = {i: b for b, i in enumerate(byte_ids) if i is not None}
    added = [a for a in _added(src, tokens, types) if not runs[a.id]]
    return TokenizerSpec(
        kind="spm",
        tokens=spm_bytes(spelled, values),
        byte_ids=byte_ids if None not in byte_ids else [None] * 256,
        merges=merges,
        added=added,
        prefix_space="first" if src.add_space_prefix else "none",
        strip_left=1 if src.add_space_prefix else 0,
        fuse_unk=True,
        unk=src.unk,
        bos=src.bos,
        eos=src.eos,
        pad=src.pad,
        prefix_ids=_ends(src.add_bos, src.bos),
        suffix_ids=_ends(src.add_eos, src.eos),
        byte_tokens=frozenset(values),
    )


def spm_bytes(spelled: Sequence[str], byte_values: Mapping[int, int]) -> list[bytes]:
    """What each token of an spm vocabulary stands for: its byte, or its text with meta spaces as spaces."""
    return [
        bytes([byte_values[i]])
        if i in byte_values
        else text.replace(META_SPACE, " ").encode("utf-8", "surrogateescape")
        for i, text in enumerate(spelled)
    ]


def _ends(wanted: bool | None, token: int | None) -> tuple[int, ...]:
    return (token,) if wanted and token is not None else ()


def _is_text(token: str) -> bool:
    """Something that can be found in a text: not empty and valid UTF-8."""
    return bool(token) and not any("\ud800" <= ch <= "\udfff" for ch in token)


def _added(src: TokenizerFields, tokens: list[str], types: list[int]) -> list[Added]:
    """Control and user-defined tokens, and whatever the file names as bos, eos, unk or pad."""
    named = {i for i in (src.bos, src.eos, src.unk, src.pad) if i is not None}
    return [
        Added(i, text, special=kind == CONTROL or i in named)
        for i, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if (kind in (CONTROL, USER_DEFINED) or i in named) and _is_text(text)
    ]
