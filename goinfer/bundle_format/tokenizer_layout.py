"""The tokenizer section: little-endian tables that an encoder reads in place, without building anything.

    head    24 bytes: magic 89 "GTK", u32 version, u32 number of arrays, u32 bytes of metadata, u64 bytes of the section
    table   32 bytes an array, in the order of ARRAYS: name (16, zero padded), u64 offset in the section, u64 bytes
    meta    JSON object, sorted keys, ASCII
    arrays  each at a multiple of 64, zero padding between them and at the end

Arrays (types in ARRAYS: I u32, H u16, B u8; V tokens, M merges, A added tokens, S hash slots):

    token_offsets [V+1], token_bytes   token i stands for token_bytes[offsets[i]:offsets[i+1]] in decoded text
    token_flags [V]                    bits FLAG_*
    token_hash [S]                     open addressing, linear probing from crc32(bytes): token ids or NONE
    byte_ids [256]                     the token of one byte (byte alphabet, or byte fallback) or NONE
    merge_offsets [V+1], merge_rights [M], merge_ranks [M]
                                       pairs by left token, right tokens ascending within a row
    merge_results [M]                  by rank: the token that the pair becomes; rank 0 merges first
    added_ids [A], added_offsets [A+1], added_bytes, added_flags [A]
                                       tokens matched in the text before it is cut up, with their spelling there
    class_index [4352], class_blocks [256 * B]
                                       code point c has class class_blocks[256 * class_index[c >> 8] + (c & 255)]

The hash holds tokens that ordinary text may become: no control tokens and no byte tokens.

Metadata, in the order a text meets it:

    normalizer      steps ["NFC"], ["replace", from, to], ["prepend", text]; for text between added tokens
    prefix_space    "none", "first", "always" or "prepend": when a space goes before such text
    kind            "byte_level": symbols are bytes; "spm": symbols are characters, U+2581 is a space
    patterns        byte_level: regular expressions over class bytes; each isolates its matches in the pieces before
    words           spm: a regular expression that cuts the text without changing its tokens, or null
    split_spaces    spm: true if `words` cuts at every space because the model does
    ignore_merges   true if a word that is a token is taken whole
    unk, fuse_unk   the token of symbols without one (null: they vanish), and whether a run of them is one token
    prefix_ids, suffix_ids
                    what goes around a text
    strip_left      spaces that decoding drops at the start
    bos, eos, pad   ids or null
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, Literal
from zlib import crc32

import numpy as np

from goinfer.bundle_format.errors import BundleError

MAGIC: Final = b"\x89GTK"
VERSION: Final = 1
ALIGN: Final = 64
NONE: Final = 0xFFFFFFFF
CODE_POINT_BLOCKS: Final = 0x1100

FLAG_SPECIAL: Final = 1  # a control token: no text of its own, never made from plain text
FLAG_BYTE: Final = 2  # a byte fallback token
FLAG_ADDED: Final = 4  # matched whole in the text
FLAG_LSTRIP: Final = 8  # takes the whitespace before it
FLAG_RSTRIP: Final = 16  # takes the whitespace after it
FLAG_NORMALIZED: Final = 32  # matched in the normalised text

ARRAYS: Final[Mapping[str, Literal["I", "H", "B"]]] = {
    "token_offsets": "I",
    "token_bytes": "B",
    "token_flags": "B",
    "token_hash": "I",
    "byte_ids": "I",
    "merge_offsets": "I",
    "merge_rights": "I",
    "merge_ranks": "I",
    "merge_results": "I",
    "added_ids": "I",
    "added_offsets": "I",
    "added_bytes": "B",
    "added_flags": "B",
    "class_index": "H",
    "class_blocks": "B",
}

META_KEYS: Final = frozenset(
    (
        "kind",
        "patterns",
        "normalizer",
        "prefix_space",
        "split_spaces",
        "words",
        "strip_left",
        "ignore_merges",
        "fuse_unk",
        "unk",
        "bos",
        "eos",
        "pad",
        "prefix_ids",
        "suffix_ids",
    )
)

_HEAD = struct.Struct("<4sIIIQ")
_ENTRY = struct.Struct("<16sQQ")
_ITEM_SIZE = {"I": 4, "H": 2, "B": 1}


class TokenizerSectionError(BundleError):
    """The tokenizer section is damaged or of a version that this reader does not know."""


def pack(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The section's bytes. Every name of ARRAYS must be there, with that item type, and nothing else."""
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    at = _aligned(_HEAD.size + _ENTRY.size * len(ARRAYS) + len(text))
    entries, bodies = [], []
    for name, code in ARRAYS.items():
        body = np.ascontiguousarray(arrays[name], dtype=np.dtype(code).newbyteorder("<")).tobytes()
        entries.append(_ENTRY.pack(name.encode("ascii"), at, len(body)))
        bodies.append((at, body))
        at = _aligned(at + len(body))
    out = bytearray(at)
    head = _HEAD.pack(MAGIC, VERSION, len(ARRAYS), len(text), at) + b"".join(entries) + text
    out[: len(head)] = head
    for start, body in bodies:
        out[start : start + len(body)] = body
    return bytes(out)


def unpack(section: memoryview) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Metadata and typed views into `section`, all ranges, lengths and ids checked; nothing is copied."""
    view = section.cast("B")
    meta, entries = _read_head(view)
    arrays: dict[str, memoryview] = {}
    for name, start, size in entries:
        code = ARRAYS.get(name)
        if code is None or name in arrays:
            raise TokenizerSectionError(f"tokenizer section: array {name!r} is unknown or there twice")
        if start % ALIGN or start + size > len(view) or size % _ITEM_SIZE[code]:
            raise TokenizerSectionError(f"tokenizer section: array {name} lies outside the section or is cut")
        arrays[name] = view[start : start + size].cast(code)
    missing = ARRAYS.keys() - arrays.keys()
    if missing:
        raise TokenizerSectionError(f"tokenizer section: array {min(missing)} is missing")
    _check(meta, arrays)
    return meta, arrays


def _read_head(view: memoryview) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    if len(view) < _HEAD.size:
        raise TokenizerSectionError(f"tokenizer section: {len(view)} bytes, a head needs {_HEAD.size}")
    magic, version, count, meta_size, total = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise TokenizerSectionError("tokenizer section: the magic is wrong; compile the bundle again")
    if version != VERSION:
        raise TokenizerSectionError(f"tokenizer section: version {version}, this reader knows {VERSION}")
    end = _HEAD.size + _ENTRY.size * count + meta_size
    if total != len(view) or end > len(view):
        raise TokenizerSectionError(f"tokenizer section: {len(view)} bytes, its head says {max(total, end)}")
    entries = []
    for i in range(count):
        name, start, size = _ENTRY.unpack_from(view, _HEAD.size + _ENTRY.size * i)
        entries.append((name.rstrip(b"\0").decode("ascii", "replace"), start, size))
    try:
        meta = json.loads(bytes(view[end - meta_size : end]))
    except ValueError as e:
        raise TokenizerSectionError(f"tokenizer section: the metadata is not JSON ({e})") from None
    if not isinstance(meta, dict):
        raise TokenizerSectionError("tokenizer section: the metadata is not an object")
    return meta, entries


def _check(meta: Mapping[str, Any], views: Mapping[str, memoryview]) -> None:
    """All lengths, offsets and ids: a reader may then follow every number in the tables."""
    missing = META_KEYS - meta.keys()
    if missing:
        raise TokenizerSectionError(f"tokenizer section: the metadata lacks {min(missing)!r}")
    a = {name: np.frombuffer(view, dtype=np.dtype(ARRAYS[name])) for name, view in views.items()}
    vocab, slots = len(a["token_flags"]), len(a["token_hash"])
    merges, added = len(a["merge_results"]), len(a["added_ids"])
    blocks = len(a["class_blocks"]) // 256
    rules = {
        "token_flags": vocab > 0,
        "token_offsets": _are_offsets(a["token_offsets"], vocab, len(a["token_bytes"])),
        "token_hash": slots > 0 and slots & (slots - 1) == 0 and _are_ids(a["token_hash"], vocab),
        "byte_ids": len(a["byte_ids"]) == 256 and _are_ids(a["byte_ids"], vocab),
        "merge_offsets": _are_offsets(a["merge_offsets"], vocab, merges),
        "merge_rights": len(a["merge_rights"]) == merges and _below(a["merge_rights"], vocab),
        "merge_ranks": len(a["merge_ranks"]) == merges and _below(a["merge_ranks"], merges),
        "merge_results": _below(a["merge_results"], vocab),
        "added_ids": _below(a["added_ids"], vocab),
        "added_offsets": _are_offsets(a["added_offsets"], added, len(a["added_bytes"])),
        "added_flags": len(a["added_flags"]) == added,
        "class_index": len(a["class_index"]) == CODE_POINT_BLOCKS and _below(a["class_index"], blocks),
        "class_blocks": len(a["class_blocks"]) == 256 * blocks,
    }
    for name, good in rules.items():
        if not good:
            raise TokenizerSectionError(f"tokenizer section: array {name} has a wrong length or a wrong entry")


def _are_offsets(values: np.ndarray, rows: int, total: int) -> bool:
    """Ascending from 0 to `total`, one more than there are rows."""
    if len(values) != rows + 1 or values[0] != 0 or values[-1] != total:
        return False
    return bool((values[1:] >= values[:-1]).all())


def _below(values: np.ndarray, limit: int) -> bool:
    return not len(values) or int(values.max()) < limit


def _are_ids(values: np.ndarray, vocab: int) -> bool:
    return bool(((values < vocab) | (values == NONE)).all())


def hash_slot(key: bytes, slots: int) -> int:
    """Where the search for `key` starts in a table of `slots` (a power of two)."""
    return crc32(key) & (slots - 1)


def _aligned(value: int) -> int:
    return (value + ALIGN - 1) // ALIGN * ALIGN
