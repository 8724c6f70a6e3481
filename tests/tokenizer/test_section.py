"""The section's bytes: complete, deterministic, damage refused; and sources that contradict themselves."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goinfer.bundle_format import tokenizer_layout as layout
from goinfer.bundle_format.errors import GoinferError
from goinfer.compiler.checkpoints import TokenizerSource
from goinfer.compiler.errors import CheckpointError, UnsupportedError
from goinfer.compiler.tokenizer import build_tokenizer_section
from goinfer.compiler.tokenizer_merges import merge_ids, merges_from_scores
from goinfer.runtime.tokenizer import Tokenizer
from tests.tokenizer import oracles

TINY = TokenizerSource(
    kind="spm",
    pre="default",
    tokens=["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "ab"],
    scores=[0.0, 0.0, 0.0, -3.0, -4.0, -5.0, -1.0, -2.0],
    types=[2, 3, 3, 1, 1, 1, 1, 1],
    bos=1,
    eos=2,
    unk=0,
)


def test_round_trip() -> None:
    section = build_tokenizer_section(TINY)
    meta, arrays = layout.unpack(memoryview(section))
    assert meta["kind"] == "spm"
    assert arrays.keys() == layout.ARRAYS.keys()
    assert list(arrays["added_ids"]) == [0, 1, 2]
    rebuilt = {name: np.frombuffer(view, np.dtype(layout.ARRAYS[name])) for name, view in arrays.items()}
    assert layout.pack(meta, rebuilt) == section
    assert len(section) % layout.ALIGN == 0


def test_same_source_same_bytes() -> None:
    for pair in (oracles.byte_level("qwen2"), oracles.spm(True)):
        assert build_tokenizer_section(pair.source) == build_tokenizer_section(pair.source)


def test_every_truncation_and_trailing_bytes_are_refused() -> None:
    section = build_tokenizer_section(TINY)
    for size in [*range(0, 700), *range(700, len(section), 997)]:
        with pytest.raises(layout.TokenizerSectionError):
            Tokenizer(section[:size])
    with pytest.raises(layout.TokenizerSectionError):
        Tokenizer(section + b"\0" * 64)


def test_every_damaged_head_byte_is_refused_or_harmless() -> None:
    """The bundle's checksum catches damage; without it the head still never leads outside of the section."""
    section = build_tokenizer_section(TINY)
    end = 24 + 32 * len(layout.ARRAYS)
    refused = 0
    for at in range(end):
        broken = bytearray(section)
        broken[at] ^= 0x41
        try:
            layout.unpack(memoryview(bytes(broken)))
        except layout.TokenizerSectionError as e:
            refused += 1
            assert "\n" not in str(e)
    assert refused == end


BAD_ENTRIES = [
    ("token_offsets", 1, 10**6),
    ("token_hash", 0, 8),
    ("byte_ids", 255, 8),
    ("merge_offsets", 3, 99),
    ("merge_rights", 0, 8),
    ("merge_ranks", 0, 2),
    ("merge_results", 1, 8),
    ("added_ids", 2, 8),
    ("added_offsets", 1, 77),
    ("class_index", 100, 1),
]


@pytest.mark.parametrize(("name", "at", "value"), BAD_ENTRIES)
def test_entries_that_lead_outside_are_refused(name: str, at: int, value: int) -> None:
    meta, views = layout.unpack(memoryview(build_tokenizer_section(TINY)))
    arrays = {key: np.frombuffer(view, np.dtype(layout.ARRAYS[key])).copy() for key, view in views.items()}
    arrays[name][at] = value
    with pytest.raises(layout.TokenizerSectionError, match=f"array {name} "):
        Tokenizer(layout.pack(meta, arrays))


@pytest.mark.parametrize("key", sorted(layout.META_KEYS))
def test_metadata_is_complete(key: str) -> None:
    meta, views = layout.unpack(memoryview(build_tokenizer_section(TINY)))
    arrays = {name: np.frombuffer(view, np.dtype(layout.ARRAYS[name])) for name, view in views.items()}
    with pytest.raises(layout.TokenizerSectionError, match=f"lacks '{key}'"):
        Tokenizer(layout.pack({k: v for k, v in meta.items() if k != key}, arrays))


def test_other_versions_are_refused() -> None:
    section = bytearray(build_tokenizer_section(TINY))
    struct.pack_into("<I", section, 4, layout.VERSION + 1)
    with pytest.raises(layout.TokenizerSectionError, match=f"version {layout.VERSION + 1}"):
        Tokenizer(bytes(section))


def test_hash_finds_every_token_of_ordinary_text() -> None:
    pair = oracles.byte_level("gpt-2")
    _, arrays = layout.unpack(memoryview(build_tokenizer_section(pair.source)))
    slots = len(arrays["token_hash"])
    used = [i for i in arrays["token_hash"] if i != layout.NONE]
    assert 2 * len(used) <= slots
    assert len(set(used)) == len(used) == len(pair.source.tokens) - len(oracles.CONTROL)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab\u2581", min_size=1, max_size=5), min_size=1, max_size=40, unique=True), st.randoms())
def test_merges_from_scores_are_the_slow_ones(tokens: list[str], random: Any) -> None:
    scores = [float(random.randrange(4)) for _ in tokens]
    ids = {t: i for i, t in enumerate(tokens)}
    slow = [(ids[a], ids[b], ids[a + b]) for a, b in oracles.slow_merges(tokens, scores)]
    assert [tuple(row) for row in merges_from_scores(ids, np.array(scores)).tolist()] == slow


def test_a_pair_listed_twice_keeps_its_last_rank() -> None:
    """As a dictionary filled in order does."""
    ids = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}
    assert merge_ids(["a b", "b c"], ids).tolist() == [[0, 1, 3], [1, 2, 4]]
    tokens = ["Ġ", "a", "b", "c", "ab", "bc"]
    once = TokenizerSource(kind="bpe", pre="gpt-2", tokens=tokens, merges=["a b", "b c"])
    twice = replace(once, merges=["a b", "b c", "a b"])
    assert Tokenizer(build_tokenizer_section(once)).encode("abc") == [4, 3]
    assert Tokenizer(build_tokenizer_section(twice)).encode("abc") == [1, 5]


CONTRADICTIONS = [
    ({"kind": "wpm"}, UnsupportedError, "model 'wpm'"),
    ({"kind": "bpe", "pre": "mystery"}, UnsupportedError, "'mystery'"),
    ({"kind": "bpe"}, CheckpointError, "needs merges"),
    ({"scores": None}, CheckpointError, "needs scores or merges"),
    ({"types": [1]}, CheckpointError, "8 tokens but 1 token types"),
    ({"tokens": [], "types": [], "scores": [], "bos": None, "eos": None, "unk": None}, CheckpointError, "empty"),
    ({"bos": 8}, CheckpointError, "bos has id 8"),
    ({"unk": -1}, CheckpointError, "unk has id -1"),
    ({"merges": ["a q"]}, CheckpointError, "'q', not in the vocabulary"),
    ({"merges": ["ab"]}, CheckpointError, "is not a pair"),
]


@pytest.mark.parametrize(("fields", "error", "message"), CONTRADICTIONS)
def test_contradictions_are_one_typed_line(fields: dict[str, Any], error: type[GoinferError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        build_tokenizer_section(replace(TINY, **fields))
    assert "\n" not in str(caught.value)


def test_token_that_is_not_utf8() -> None:
    """GGUF may hold raw bytes; they stay what they are."""
    source = replace(TINY, tokens=[*TINY.tokens[:-1], b"\xff\xfe"])
    ours = Tokenizer(build_tokenizer_section(source))
    assert ours.token_bytes(7) == b"\xff\xfe"
    assert ours.decode([7]) == b"\xff\xfe".decode("utf-8", "replace")


def test_reading_needs_no_copy_and_no_other_packages() -> None:
    """The section is used in place, and nothing outside of the base installation is imported for it."""
    import subprocess
    import sys

    section = bytearray(build_tokenizer_section(TINY))
    ours = Tokenizer(memoryview(section))
    assert ours.encode("ab a") == [7, 6]
    with pytest.raises(BufferError):
        section.append(0)
    code = (
        "import sys; import goinfer.runtime.tokenizer; "
        "bad = {'tokenizers', 'transformers', 'regex', 'goinfer.compiler', 'jinja2'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
