"""TokenizerSpec -> the tables of the section (bundle_format.tokenizer_layout). Same spec, same bytes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from goinfer.bundle_format import tokenizer_layout as layout
from goinfer.compiler.errors import CheckpointError, UnsupportedError
from goinfer.compiler.tokenizer_regex import compile_patterns
from goinfer.compiler.tokenizer_spec import Added, TokenizerSpec

_MAX_SPACE_EXCEPTIONS = 64


def pack_spec(spec: TokenizerSpec) -> bytes:
    """The section of `spec`. Ids out of range are refused, so that a reader may trust the tables."""
    _check_ids(spec)
    offsets, text = _pool(spec.tokens)
    patterns = compile_patterns(spec.stages)
    arrays = {
        "token_offsets": offsets,
        "token_bytes": text,
        "token_flags": _token_flags(spec),
        "token_hash": _token_hash(spec),
        "byte_ids": np.array([layout.NONE if i is None else i for i in spec.byte_ids], dtype=np.uint32),
        "class_index": patterns.class_index,
        "class_blocks": patterns.class_blocks,
        **_merge_tables(spec),
        **_added_tables(spec.added),
    }
    return layout.pack(_meta(spec, patterns.patterns), arrays)


def _meta(spec: TokenizerSpec, patterns: Sequence[str]) -> dict[str, Any]:
    return {
        "kind": spec.kind,
        "patterns": list(patterns),
        "normalizer": [list(step) for step in spec.normalizer],
        "prefix_space": spec.prefix_space,
        "split_spaces": spec.split_spaces,
        "words": _word_pattern(spec),
        "strip_left": spec.strip_left,
        "ignore_merges": spec.ignore_merges,
        "fuse_unk": spec.fuse_unk,
        "unk": spec.unk,
        "bos": spec.bos,
        "eos": spec.eos,
        "pad": spec.pad,
        "prefix_ids": list(spec.prefix_ids),
        "suffix_ids": list(spec.suffix_ids),
    }


def _check_ids(spec: TokenizerSpec) -> None:
    vocab = len(spec.tokens)
    if not vocab:
        raise CheckpointError("tokenizer: the vocabulary is empty")
    named = {"bos": spec.bos, "eos": spec.eos, "unk": spec.unk, "pad": spec.pad}
    listed = [*named.items()]
    listed += [("an added token", a.id) for a in spec.added]
    listed += [("a token put before or after a text", i) for i in (*spec.prefix_ids, *spec.suffix_ids)]
    for what, token in listed:
        if token is not None and not 0 <= token < vocab:
            raise CheckpointError(f"tokenizer: {what} has id {token}, the vocabulary has {vocab} tokens")


def _pool(items: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.zeros(len(items) + 1, dtype=np.uint64)
    np.cumsum([len(item) for item in items], out=offsets[1:])
    if offsets[-1] >= layout.NONE:
        raise UnsupportedError("tokenizer: the vocabulary holds 4 GiB of text or more")
    return offsets.astype(np.uint32), np.frombuffer(b"".join(items), dtype=np.uint8)


def _token_flags(spec: TokenizerSpec) -> np.ndarray:
    flags = np.zeros(len(spec.tokens), dtype=np.uint8)
    flags[list(spec.byte_tokens)] |= layout.FLAG_BYTE
    flags[[a.id for a in spec.added]] |= layout.FLAG_ADDED
    flags[list(spec.special)] |= layout.FLAG_SPECIAL
    return flags


def _token_hash(spec: TokenizerSpec) -> np.ndarray:
    """At most half full. Of two tokens with the same bytes the later one is found, as in a Python dict."""
    hidden = spec.special | spec.byte_tokens
    ids = {key: token for token, key in enumerate(spec.tokens) if key and token not in hidden}
    slots = 1 << max(4, (2 * len(ids)).bit_length())
    table = np.full(slots, layout.NONE, dtype=np.uint32)
    waiting = np.fromiter(ids.values(), dtype=np.int64, count=len(ids))
    at = np.fromiter((layout.hash_slot(key, slots) for key in ids), dtype=np.int64, count=len(ids))
    while len(waiting):  # one probe of all waiting tokens a round: the first at a free slot takes it
        _, first = np.unique(at, return_index=True)
        first = first[table[at[first]] == layout.NONE]
        table[at[first]] = waiting[first]
        rest = np.ones(len(waiting), dtype=bool)
        rest[first] = False
        waiting, at = waiting[rest], (at[rest] + 1) & (slots - 1)
    return table


def _merge_tables(spec: TokenizerSpec) -> dict[str, np.ndarray]:
    """Rows by left token. A pair listed twice keeps its last rank. Nothing merges into a control token, so that
    no plain text can become one."""
    vocab = len(spec.tokens)
    special = np.zeros(vocab, dtype=bool)
    special[list(spec.special)] = True
    pairs = spec.merges
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= vocab):
        raise CheckpointError("tokenizer: a merge names a token outside the vocabulary")
    left, right, result = pairs.T
    ranks = np.arange(len(pairs))
    order = np.lexsort((ranks, right, left))
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (left[order][1:] != left[order][:-1]) | (right[order][1:] != right[order][:-1])
    last &= ~special[result[order]]
    kept = order[last]
    new_rank = np.full(len(pairs), -1)
    new_rank[np.sort(kept)] = np.arange(len(kept))
    return {
        "merge_offsets": np.searchsorted(left[kept], np.arange(vocab + 1)).astype(np.uint32),
        "merge_rights": right[kept].astype(np.uint32),
        "merge_ranks": new_rank[kept].astype(np.uint32),
        "merge_results": result[np.sort(kept)].astype(np.uint32),
    }


def _added_tables(added: Sequence[Added]) -> dict[str, np.ndarray]:
    bits = (
        ("special", layout.FLAG_SPECIAL),
        ("lstrip", layout.FLAG_LSTRIP),
        ("rstrip", layout.FLAG_RSTRIP),
        ("normalized", layout.FLAG_NORMALIZED),
    )
    offsets, text = _pool([a.text.encode("utf-8") for a in added])
    return {
        "added_ids": np.array([a.id for a in added], dtype=np.uint32),
        "added_offsets": offsets,
        "added_bytes": text,
        "added_flags": np.array([sum(bit for name, bit in bits if getattr(a, name)) for a in added], np.uint8),
    }


def _word_pattern(spec: TokenizerSpec) -> str | None:
    """How an spm text may be cut without changing a token, so that words can be cached.

    A cut between two characters is exact when no token holds them side by side. Cuts are made before a run of
    spaces, except after the few characters that some token joins to a space. None: the text is not cut.
    """
    if spec.kind != "spm":
        return None
    if spec.split_spaces:
        return " [^ ]*|[^ ]+"
    hidden = spec.special | spec.byte_tokens
    joined: set[str] = set()
    for token, text in enumerate(spec.tokens):
        if b" " in text[1:] and token not in hidden:
            joined.update(a for a, b in pairwise(text.decode("utf-8", "replace")) if b == " " != a)
    if len(joined) > _MAX_SPACE_EXCEPTIONS:
        return None
    if not joined:
        return " *[^ ]+| +"
    exceptions = "".join(f"\\U{ord(ch):08x}" for ch in sorted(joined))
    return f" *[^ ]+(?:(?<=[{exceptions}]) +[^ ]+)*(?:(?<=[{exceptions}]) +)?| +"
