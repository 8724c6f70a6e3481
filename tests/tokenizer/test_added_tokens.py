"""Added and control tokens: matching, whitespace beside them, bos, and text that spells them."""

from dataclasses import replace

import pytest
from tokenizers import AddedToken

from goinfer.compiler.checkpoints import TokenizerSource
from goinfer.compiler.tokenizer import build_tokenizer_section
from goinfer.runtime.prompt import encode_prompt
from goinfer.runtime.tokenizer import Tokenizer
from tests.tokenizer import oracles, samples

MARKED = ["<|im_start|>", "<|im_start|>a", "<|im_start|> a", "<|im_start|>  a", "a<|im_end|>", "a <|im_end|> b", ""]


def test_words_beside_added_tokens() -> None:
    """The word after an added token and the first word keep their own spaces (no dummy prefix)."""
    for pair in (
        oracles.byte_level("smollm"),
        oracles.byte_level("qwen2"),
        oracles.spm(True),
        oracles.spm(False, True),
    ):
        for text in [*MARKED, " a", "a", "  a", "<bos>a", "<bos> a", "a<start_of_turn>user", " <b>x</b> y"]:
            pair.same(text)
            pair.same(text, parse_special=False)


def test_dummy_prefix_only_at_the_very_start() -> None:
    ours = oracles.spm(False, True).ours
    a = ours.encode("a", add_special=False)
    assert ours.encode("<bos>a", add_special=False)[1:] != a
    assert ours.encode(" a", add_special=False) == a


@pytest.mark.parametrize("text", ["x<|im_end|>\n<|im_start|>system", "<|endoftext|>", "<|im_start|><|im_end|>"])
def test_spelled_control_tokens_stay_text(text: str) -> None:
    pair = oracles.byte_level("smollm")
    ids = pair.ours.encode(text, parse_special=False)
    assert not pair.ours.special_ids & set(ids)
    assert pair.ours.decode(ids) == text
    assert ids == pair.expected(text, parse_special=False)
    assert pair.ours.special_ids & set(pair.ours.encode(text))


def test_no_plain_text_merges_into_a_control_token() -> None:
    """The vocabulary of an spm model implies merges that build `<eos>` from its letters; those are left out."""
    source = TokenizerSource(
        kind="spm",
        pre="default",
        tokens=["<unk>", "<eos>", "<e", "os>", "<", "e", "o", "s", ">", "os"],
        scores=[0.0, 5.0, 4.0, 3.0, 0, 0, 0, 0, 0, 4.0],
        types=[2, 3, 1, 1, 1, 1, 1, 1, 1, 1],
        eos=1,
        unk=0,
    )
    ours = Tokenizer(build_tokenizer_section(source))
    assert ours.encode("<eos>") == [1]
    assert ours.encode("<eos>", parse_special=False) == [2, 3]
    plain = Tokenizer(build_tokenizer_section(replace(source, types=[2] + [1] * 9, eos=None)))
    assert plain.encode("<eos>", parse_special=False) == [1]


def test_guards_make_text_of_what_follows() -> None:
    for pair in (oracles.byte_level("smollm"), oracles.spm(True)):
        control = "<|im_end|>" if "<|im_end|>" in pair.source.tokens else "<end_of_turn>"
        ours, guard = pair.ours, "\ufdd0"
        assert ours.encode_guarded(f"a{control}b", guard) == ours.encode(f"a{control}b", add_special=False)
        assert ours.encode_guarded(f"a{guard}{control}b", guard) == pair.expected(f"a{control}b", parse_special=False)
        assert not ours.special_ids & set(ours.encode_guarded(control[:2] + guard + control[2:], guard))
        for text in samples.ALL:
            spread = guard.join(text)
            assert guard not in ours.decode(ours.encode_guarded(spread, guard))


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("with_bos", [True, False])
def test_at_most_one_bos(add_bos: bool, with_bos: bool) -> None:
    source = replace(oracles.spm(True).source, add_bos=add_bos)
    ours = Tokenizer(build_tokenizer_section(source))
    ids = encode_prompt(ours, "<bos>hello" if with_bos else "hello")
    assert ids.count(ours.bos) == int(add_bos or with_bos)
    assert ours.encode("hello")[0] == ours.bos if add_bos else ours.bos not in ours.encode("hello")
    assert ours.bos not in ours.encode("hello", add_special=False)


def test_eos_is_added_where_the_model_wants_it() -> None:
    ours = Tokenizer(build_tokenizer_section(replace(oracles.spm(True).source, add_eos=True)))
    assert ours.encode("a")[-1] == ours.eos
    assert ours.encode("")[-2:] == [ours.bos, ours.eos]


def test_longest_added_token_wins() -> None:
    pair = oracles.spm(True)
    for count in range(1, 12):
        pair.same("\n" * count)
        pair.same("a" + "\n" * count + "b")
        pair.same("\t" * count)


def test_special_ids_and_spellings() -> None:
    pair = oracles.byte_level("smollm")
    assert {pair.ours.token_bytes(i).decode() for i in pair.ours.special_ids} == set(oracles.CONTROL)
    assert pair.ours.added_tokens.keys() == {*oracles.CONTROL, *oracles.USER_DEFINED}
    assert pair.ours.token_id("<|im_end|>") == pair.theirs.token_to_id("<|im_end|>")
    assert pair.ours.token_id("not a token") is None
    assert pair.ours.vocab_size == pair.theirs.get_vocab_size()


@pytest.mark.parametrize("lstrip", [True, False])
@pytest.mark.parametrize("rstrip", [True, False])
def test_added_tokens_that_take_whitespace(lstrip: bool, rstrip: bool) -> None:
    from tokenizers import Tokenizer as Theirs

    theirs = Theirs.from_str(oracles.byte_level("gpt-2").theirs.to_str())
    theirs.add_tokens(
        [AddedToken("<sep>", lstrip=lstrip, rstrip=rstrip, normalized=False), AddedToken(" ", normalized=False)]
    )
    source = TokenizerSource(kind="bpe", pre="", tokens=[], json=theirs.to_str().encode())
    ours = Tokenizer(build_tokenizer_section(source))
    for text in [
        "a <sep> b",
        "a \n\u3000<sep>\u2003\t b",
        "<sep>",
        "  <sep>  ",
        "<sep> <sep>",
        "a<sep>b",
        " <sep>\x1c ",
    ]:
        assert ours.encode(text) == theirs.encode(text).ids, text
