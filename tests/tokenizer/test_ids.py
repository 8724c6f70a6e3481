"""Ids equal to Hugging Face `tokenizers`, for every pre-tokenizer and both kinds of vocabulary."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from goinfer.bundle_format.errors import UsageError
from goinfer.compiler.tokenizer_pre import PRE_TOKENIZERS
from tests.tokenizer import oracles, samples

SPM = [(True, False), (False, False), (False, True)]
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_byte_level_sample(name: str) -> None:
    pair = oracles.byte_level(name)
    for text in [*samples.ALL, samples.LONG]:
        pair.same(text)
        pair.same(text, parse_special=False)


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
@FUZZ
@given(text=samples.texts())
def test_byte_level_random(name: str, text: str) -> None:
    oracles.byte_level(name).same(text)


@pytest.mark.parametrize(("space_runs", "prefix"), SPM)
def test_spm_sample(space_runs: bool, prefix: bool) -> None:
    pair = oracles.spm(space_runs, prefix)
    for text in [*samples.ALL, samples.LONG]:
        pair.same(text)


@pytest.mark.parametrize(("space_runs", "prefix"), SPM)
@FUZZ
@given(text=samples.texts())
def test_spm_random(space_runs: bool, prefix: bool, text: str) -> None:
    oracles.spm(space_runs, prefix).same(text)


def test_without_byte_fallback_unknown_characters_fuse_into_one() -> None:
    pair = oracles.spm(False, False, fallback=False)
    unk = pair.source.unk
    assert unk in pair.ours.encode("日本 語")
    for text in samples.ALL:
        pair.same(text)


def test_spm_words_are_cut_where_no_token_joins_them() -> None:
    """The cut at spaces is taken, with its exception, so the tests above see both."""
    ours = oracles.spm(True).ours
    assert ours.token_id("> </") in ours.encode("<a> </a>")
    words = ours._split("<a> </a> b  c>  d ")
    assert words == ["<a> </a> b", "  c>  d", " "]


def test_words_that_no_merge_reaches() -> None:
    """Llama 3 takes a word that is a token whole; GPT-2 only what its merges build."""
    from goinfer.compiler.checkpoints import TokenizerSource
    from goinfer.compiler.tokenizer import build_tokenizer_section
    from goinfer.runtime.tokenizer import Tokenizer

    source = TokenizerSource(kind="bpe", pre="llama-bpe", tokens=["a", "b", "c", "ab", "abc"], merges=["a b"])
    assert Tokenizer(build_tokenizer_section(source)).encode("abc ab") == [4, 3]
    assert Tokenizer(build_tokenizer_section(replace(source, pre="gpt-2"))).encode("abc ab") == [3, 2, 3]


def test_word_cache_does_not_change_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of two words is emptied all the time, and gives the same ids."""
    monkeypatch.setattr("goinfer.runtime.tokenizer._CACHE_LIMIT", 2)
    monkeypatch.setattr("goinfer.runtime.tokenizer_bpe._MEMO_LIMIT", 2)
    from goinfer.compiler.tokenizer import build_tokenizer_section
    from goinfer.runtime.tokenizer import Tokenizer

    for pair in (oracles.byte_level("smollm"), oracles.spm(True)):
        fresh = Tokenizer(build_tokenizer_section(pair.source))
        assert fresh.encode(samples.LONG, add_special=False) == pair.expected(samples.LONG)


@pytest.mark.parametrize("count", [23, 24, 25, 26, 200])
def test_long_words_merge_as_short_ones(count: int) -> None:
    """The two merging algorithms meet at a word length; both sides of it agree with the oracle."""
    for pair in (oracles.byte_level("gpt-2"), oracles.spm(True)):
        for unit in ("a", "ab", "the", "aab", "é"):
            pair.same((unit * count)[:count])


def test_half_a_surrogate_pair_is_refused() -> None:
    """As Hugging Face's tokenizers do. Taken for U+FFFD before, which answered a text that nobody wrote."""
    for pair in (oracles.byte_level("qwen2"), oracles.spm(True)):
        for text, at in (("a\ud800b", 1), ("\ud83d\ude42", 0), ("é\udcff", 1)):
            with pytest.raises(UsageError, match=f"U.{ord(text[at]):04X} at index {at}"):
                pair.ours.encode(text)
            with pytest.raises(UsageError, match=f"at index {at}"):
                pair.ours.encode_guarded(text, "\ufdd0")


def test_bytes_that_are_not_utf8_encode_as_their_replacement() -> None:
    for raw in (b"\xff", b"a\xe2\x82b", b"\xf0\x9f\x99", b"\xed\xa0\x80x", b"\xc0\xaf"):
        text = raw.decode("utf-8", "replace")
        for pair in (oracles.byte_level("smollm"), oracles.spm(True)):
            pair.same(text)
            assert pair.ours.decode(pair.ours.encode(text, add_special=False)) == text
