"""tokenizer.json as the source: what is understood agrees with the library that wrote it, the rest is refused."""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors

from goinfer.compiler.checkpoints import TokenizerSource
from goinfer.compiler.errors import CheckpointError, UnsupportedError
from goinfer.compiler.tokenizer import build_tokenizer_section
from goinfer.compiler.tokenizer_pre import LLAMA3_PATTERN
from goinfer.runtime.tokenizer import Tokenizer as Ours
from tests.tokenizer import oracles, samples

META = "\u2581"


def ours(theirs: Tokenizer | dict[str, Any], **fields: Any) -> Ours:
    raw = theirs.to_str() if isinstance(theirs, Tokenizer) else json.dumps(theirs)
    source = TokenizerSource(kind="bpe", pre="", tokens=[], json=raw.encode(), **fields)
    return Ours(build_tokenizer_section(source))


def copy(theirs: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(theirs.to_str())


def same_everywhere(theirs: Tokenizer) -> None:
    made = ours(theirs)
    for text in [*samples.ALL, samples.LONG]:
        ids = theirs.encode(text).ids
        assert made.encode(text) == ids, text
        assert made.decode(ids) == theirs.decode(ids, skip_special_tokens=False), text


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_byte_level(name: str) -> None:
    same_everywhere(oracles.byte_level(name).theirs)


def test_byte_level_with_two_splits_and_a_literal_one() -> None:
    theirs = copy(oracles.byte_level("gpt-2").theirs)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split("--", "isolated"),
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    same_everywhere(theirs)


def test_byte_level_prefix_space() -> None:
    theirs = copy(oracles.byte_level("gpt-2").theirs)
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    same_everywhere(theirs)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_unicode_normalization(form: str) -> None:
    theirs = copy(oracles.byte_level("gpt-2").theirs)
    theirs.normalizer = normalizers.Sequence([getattr(normalizers, form)(), normalizers.Replace("ab", "ba")])
    same_everywhere(theirs)


def test_spm_as_gemma_writes_it() -> None:
    theirs = copy(oracles.spm(True).theirs)
    theirs.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    same_everywhere(theirs)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_spm_with_metaspace(scheme: str, split: bool) -> None:
    theirs = copy(oracles.spm(False, True).theirs)
    theirs.pre_tokenizer = pre_tokenizers.Metaspace(META, scheme, split=split)
    same_everywhere(theirs)


def test_spm_with_prepend_as_llama2_writes_it() -> None:
    theirs = copy(oracles.spm(False, True).theirs)
    theirs.normalizer = normalizers.Sequence([normalizers.Prepend(META), normalizers.Replace(" ", META)])
    theirs.pre_tokenizer = None  # type: ignore[assignment]
    same_everywhere(theirs)


def test_metaspace_decoder() -> None:
    theirs = copy(oracles.spm(False, True, fallback=False).theirs)
    theirs.decoder = decoders.Metaspace(META, "first", False)
    made = ours(theirs)
    for text in ("a", " a", "a b  c"):
        assert made.decode(made.encode(text)) == theirs.decode(theirs.encode(text).ids)


def test_added_tokens_in_normalised_text() -> None:
    theirs = copy(oracles.byte_level("qwen2").theirs)
    theirs.add_tokens([AddedToken("e\u0301e\u0301", normalized=True), AddedToken("<nn>", normalized=False)])
    made = ours(theirs)
    for text in ("éé", "e\u0301e\u0301", "x<nn>éé<nn>", "éé éé", "<nn"):
        assert made.encode(text) == theirs.encode(text).ids, text


def test_template_says_what_goes_around() -> None:
    theirs = copy(oracles.byte_level("llama-bpe").theirs)
    around = [("<|im_start|>", 1), ("<|im_end|>", 2)]
    template = processors.TemplateProcessing("<|im_start|> $A <|im_end|>", special_tokens=around)
    theirs.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    made = ours(theirs)
    assert made.encode("hi") == theirs.encode("hi").ids == [1, *theirs.encode("hi", add_special_tokens=False).ids, 2]
    assert made.encode("hi", add_special=False) == theirs.encode("hi", add_special_tokens=False).ids


def test_flags_say_it_where_there_is_no_template() -> None:
    made = ours(oracles.byte_level("gpt-2").theirs, bos=0, eos=2, add_bos=True, add_eos=True)
    assert made.encode("") == [0, 2]
    assert (made.bos, made.eos) == (0, 2)


def test_ids_with_holes() -> None:
    data = json.loads(oracles.byte_level("gpt-2").theirs.to_str())
    size = len(data["model"]["vocab"])
    data["added_tokens"].append({"id": size + 100, "content": "<far>", "special": True})
    made = ours(data)
    assert made.vocab_size == size + 101
    assert made.encode("<far>") == [size + 100]
    assert made.token_bytes(size + 50) == b""


def changed(*path: str, value: Any, spm: bool = False) -> dict[str, Any]:
    theirs = oracles.spm(True).theirs if spm else oracles.byte_level("gpt-2").theirs
    data: dict[str, Any] = json.loads(theirs.to_str())
    node = data
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return data


UNSUPPORTED = [
    (("model", "type"), "Unigram", "model 'Unigram'"),
    (("model", "dropout"), 0.1, r"model.dropout = 0.1"),
    (("model", "continuing_subword_prefix"), "##", "continuing_subword_prefix"),
    (("normalizer",), {"type": "Lowercase"}, "a normalizer with type='Lowercase'"),
    (
        ("normalizer",),
        {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""},
        "a normalizer with type='Replace'",
    ),
    (("pre_tokenizer",), {"type": "Whitespace"}, "a pre-tokenizer with type='Whitespace'"),
    (("pre_tokenizer",), None, "neither byte level nor with meta spaces"),
    (("decoder",), {"type": "WordPiece"}, "a decoder with type='WordPiece'"),
    (("post_processor",), {"type": "BertProcessing"}, "post-processor 'BertProcessing'"),
]


@pytest.mark.parametrize(("path", "value", "message"), UNSUPPORTED)
def test_what_is_not_known_is_refused_by_name(path: tuple[str, ...], value: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ours(changed(*path, value=value))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "Digits", "individual_digits": False},
        {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext", "invert": False},
        {"type": "Split", "pattern": {"Regex": r"\X"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
    ],
)
def test_byte_level_parts_that_are_not_known(part: dict[str, Any]) -> None:
    tail = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    with pytest.raises(UnsupportedError):
        ours(changed("pre_tokenizer", value={"type": "Sequence", "pretokenizers": [part, tail]}))


def test_single_word_tokens_are_refused() -> None:
    data = changed("normalizer", value=None)
    data["added_tokens"][0]["single_word"] = True
    with pytest.raises(UnsupportedError, match="single_word"):
        ours(data)


DAMAGED = [
    (("model",), None, "no object `model`"),
    (("model", "merges"), None, "no vocab or no merges"),
    (("model", "merges"), [["a", "zzz"]], "'zzz', not in the vocabulary"),
    (("model", "merges"), ["a b c"], "is not a pair"),
    (("model", "vocab"), {"a": -1}, "not a range"),
    (("model", "vocab"), {"a": 1 << 40}, "not a range"),
    (("added_tokens",), [{"content": "x"}], "malformed"),
    (("normalizer",), {"kind": "NFC"}, "malformed"),
    (("post_processor",), {"type": "TemplateProcessing"}, "malformed"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGED)
def test_damage_is_one_typed_line(path: tuple[str, ...], value: Any, message: str) -> None:
    data = changed(*path, value=value)
    if path == ("model", "vocab"):
        data["model"]["merges"], data["added_tokens"] = [], []
    with pytest.raises(CheckpointError, match=message) as error:
        ours(data)
    assert "\n" not in str(error.value)


def test_not_json() -> None:
    with pytest.raises(CheckpointError, match="not JSON"):
        build_tokenizer_section(TokenizerSource(kind="bpe", pre="", tokens=[], json=b"{"))
