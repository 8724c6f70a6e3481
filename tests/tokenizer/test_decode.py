"""Ids -> text, at once and token by token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goinfer.compiler.tokenizer import build_tokenizer_section
from goinfer.runtime.tokenizer import TokenIdError, Tokenizer
from tests.tokenizer import oracles, samples

PAIRS = {
    "smollm": lambda: oracles.byte_level("smollm"),
    "gemma": lambda: oracles.spm(True),
    "llama": lambda: oracles.spm(False, True),
}


def ids_of(pair: oracles.Pair) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, pair.ours.vocab_size - 1), max_size=30)


@pytest.mark.parametrize("name", PAIRS)
def test_text_comes_back(name: str) -> None:
    pair = PAIRS[name]()
    for text in samples.ALL:
        ids = pair.expected(text)
        assert pair.ours.decode(ids) == pair.theirs.decode(ids, skip_special_tokens=False)
        assert pair.ours.decode(ids, skip_special=True) == pair.theirs.decode(ids, skip_special_tokens=True)
        if name != "llama" and "\u2581" not in text:
            assert pair.ours.decode(ids) == text


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_byte_level_random_ids_decode_as_theirs(data: st.DataObject) -> None:
    """Any ids, so also bytes that are not UTF-8."""
    pair = oracles.byte_level("smollm")
    ids = data.draw(ids_of(pair))
    assert pair.ours.decode(ids) == pair.theirs.decode(ids, skip_special_tokens=False)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_spm_random_ids_decode_as_theirs(data: st.DataObject) -> None:
    """Where byte tokens stand, theirs replaces a whole run of byte tokens if any of it is not UTF-8; ours replaces
    what is not UTF-8. Without byte tokens the two agree on everything."""
    pair = oracles.spm(True)
    ids = [i for i in data.draw(ids_of(pair)) if pair.source.types[i] != 6]
    assert pair.ours.decode(ids) == pair.theirs.decode(ids, skip_special_tokens=False)


def test_valid_byte_runs_decode_as_theirs() -> None:
    pair = oracles.spm(True)
    for text in ("é", "日本", "🙂", "\x00\x7f", "a"):
        ids = [pair.ours.token_id("<unk>") or 0][:0] + [pair.source.tokens.index(f"<0x{b:02X}>") for b in text.encode()]
        assert pair.ours.decode(ids) == text == pair.theirs.decode(ids)


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_stream_joins_to_the_whole(name: str, data: st.DataObject) -> None:
    """For any ids, every prefix of them, with and without control tokens."""
    pair = PAIRS[name]()
    ids = data.draw(ids_of(pair))
    skip = data.draw(st.booleans())
    for cut in range(len(ids) + 1):
        stream = pair.ours.stream(skip_special=skip)
        pieces = [stream.push(i) for i in ids[:cut]]
        pieces.append(stream.finish())
        assert "".join(pieces) == pair.ours.decode(ids[:cut], skip_special=skip)


def test_stream_never_gives_half_a_character() -> None:
    """A family emoji out of single bytes: no replacement character before the end, whole characters at once."""
    pair = oracles.byte_level("smollm")
    family = "👩‍👩‍👧‍👦"
    alphabet = {pair.ours.token_bytes(i): i for i in range(pair.ours.vocab_size)}
    ids = [alphabet[bytes([b])] for b in family.encode()]
    stream = pair.ours.stream()
    pieces = [stream.push(i) for i in ids]
    assert [p for p in pieces if p] == list(family)
    for last in range(1, len(ids)):
        stream = pair.ours.stream()
        text = "".join([stream.push(i) for i in ids[:last]])
        assert "\ufffd" not in text
        assert text + stream.finish() == pair.ours.decode(ids[:last])


def test_finish_leaves_the_stream_usable() -> None:
    pair = oracles.byte_level("smollm")
    stream = pair.ours.stream()
    ids = pair.ours.encode("é")
    first = stream.push(ids[0]) + stream.finish()
    assert first == pair.ours.decode(ids[:1])
    assert "".join([stream.push(i) for i in pair.ours.encode("abc")]) == "abc"


def test_first_space_is_dropped_once() -> None:
    ours = oracles.spm(False, True).ours
    assert ours.decode(ours.encode("hello", add_special=False)) == "hello"
    assert ours.decode(ours.encode("  hello", add_special=False)) == " hello"
    assert ours.decode([]) == ""


@pytest.mark.parametrize("token", [-1, 10**9])
def test_unknown_id_is_refused(token: int) -> None:
    ours = oracles.byte_level("smollm").ours
    with pytest.raises(TokenIdError, match=f"there is no token {token}"):
        ours.decode([0, token])
    with pytest.raises(TokenIdError):
        ours.stream().push(token)


def test_every_token_is_its_spelling() -> None:
    """token_bytes joins to decode, and ordinary tokens are found by their bytes."""
    for pair in (oracles.byte_level("smollm"), oracles.spm(True)):
        ours = Tokenizer(build_tokenizer_section(pair.source))
        ids = list(range(ours.vocab_size))
        assert b"".join(map(ours.token_bytes, ids)).decode("utf-8", "replace") == ours.decode(ids)
        for i in ids:
            text = ours.token_bytes(i)
            if pair.source.types[i] == 1 and text.decode("utf-8", "replace").encode() == text:
                assert ours.token_id(text.decode()) == i
