"""Tokenizers of Hugging Face folders: fields, special ids, names of pre-tokenizers, ids without rows."""

import copy
import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from goinfer.compiler import errors
from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.checkpoints.hf_pre_tokenizer import name_of, prefixes_space
from goinfer.compiler.tokenizer_pre import LLAMA3_PATTERN, QWEN2_PATTERN
from tests.checkpoints.safetensors_forge import CONFIG, file_of, folder, weights


def byte_level(pre=None, normalizer=None, post=None):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    if post is not None:
        tokenizer.post_processor = post
    return json.loads(tokenizer.to_str())


CONFIG_6 = CONFIG | {"bos_token_id": 3, "eos_token_id": 4}


def opened(tmp_path, tokenizer, config=None, **files):
    named = {name.replace("__", "."): content for name, content in files.items()}
    content = {"model.safetensors": file_of(weights("w")), "tokenizer.json": tokenizer, **named}
    return open_checkpoint(folder(tmp_path / "m", content, config or CONFIG_6))


def test_every_field(tmp_path):
    ends = [("<s>", 3), ("</s>", 4)]
    data = byte_level(post=processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends))
    checkpoint = opened(tmp_path, data, tokenizer_config__json={"eos_token": {"content": "</s>"}, "pad_token": "a"})
    source = checkpoint.tokenizer
    assert (source.kind, source.pre) == ("bpe", "gpt-2")
    assert source.tokens == ["a", "b", "ab", "<s>", "</s>", "<think>"]
    assert source.types == [1, 1, 1, 3, 3, 4]
    assert source.merges == ["a b"]
    assert (source.bos, source.eos, source.unk, source.pad) == (3, 4, None, 0)
    assert (source.add_bos, source.add_eos, source.add_space_prefix) == (True, True, False)
    assert json.loads(source.json) == data
    assert checkpoint.generation == {"eos_token_ids": [4], "bos_token_id": 3, "pad_token_id": 0, "add_bos": True}


def test_a_folder_without_tokenizer(tmp_path):
    checkpoint = open_checkpoint(folder(tmp_path / "m", {"model.safetensors": file_of(weights("w"))}, CONFIG_6))
    assert checkpoint.tokenizer is None
    assert checkpoint.chat_template is None
    assert checkpoint.generation == {"eos_token_ids": [4], "bos_token_id": 3}


def test_no_template_adds_nothing(tmp_path):
    data = byte_level(post=processors.ByteLevel())
    source = opened(tmp_path, data, special_tokens_map__json={"bos_token": "<s>"}).tokenizer
    assert (source.bos, source.add_bos, source.add_eos) == (3, False, False)
    sequence = processors.Sequence(
        [processors.ByteLevel(), processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])]
    )
    source = opened(tmp_path, byte_level(post=sequence)).tokenizer
    assert (source.bos, source.add_bos, source.add_eos) == (3, True, False)


def split(pattern):
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), spell])


@pytest.mark.parametrize(
    ("pre", "normalizer", "name"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), None, "gpt-2"),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                  pre_tokenizers.ByteLevel(add_prefix_space=False)]), None, "smollm"),
        (split(LLAMA3_PATTERN), None, "llama-bpe"),
        (split(QWEN2_PATTERN), normalizers.NFC(), "qwen2"),
        (split(QWEN2_PATTERN), None, "deepseek-r1-qwen"),
    ],
)  # fmt: skip
def test_pre_tokenizers_are_named_by_their_structure(pre, normalizer, name):
    assert name_of(byte_level(pre, normalizer)) == name


@pytest.mark.parametrize(
    "pre",
    [
        split(r"\p{L}+"),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(False)]),
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(False)]),
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "removed"),
                                 pre_tokenizers.ByteLevel(False, use_regex=False)]),
    ],
)  # fmt: skip
def test_other_structures_have_no_name(pre):
    assert name_of(byte_level(pre)).startswith("unknown: {")


def escaped_spaces(normalizer, pre=None):
    bytes_ = {f"<0x{b:02X}>": b + 4 for b in range(256)}
    vocab = {"<unk>": 0, "<s>": 1, "▁": 2, "a": 3, **bytes_, "▁a": 260}
    bpe = models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(bpe)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    return json.loads(tokenizer.to_str())


@pytest.mark.parametrize(
    ("normalizer", "pre", "prefix"),
    [
        (normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), False),
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None, True),
        (None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), True),
        (None, pre_tokenizers.Metaspace(prepend_scheme="never", split=False), False),
    ],
)
def test_merges_over_escaped_spaces(tmp_path, normalizer, pre, prefix):
    data = escaped_spaces(normalizer, pre)
    source = opened(tmp_path, data, CONFIG_6 | {"vocab_size": 300}).tokenizer
    assert (source.kind, source.pre, source.scores) == ("spm", "default", None)
    assert source.merges == ["▁ a"]
    assert source.types == [3, 3, 1, 1] + [6] * 256 + [1]
    assert source.add_space_prefix is prefixes_space(data) is prefix


def test_special_tokens_past_the_embedding_are_left_out(tmp_path):
    data = byte_level()
    data["added_tokens"] = [row for row in data["added_tokens"] if row["special"]]
    source = opened(tmp_path, data, CONFIG_6 | {"vocab_size": 4}).tokenizer
    assert source.tokens == ["a", "b", "ab", "<s>"]
    assert [row["content"] for row in json.loads(source.json)["added_tokens"]] == ["<s>"]
    assert source.eos is None


@pytest.mark.parametrize("rows", [2, 5])
def test_q05_ordinary_tokens_past_the_embedding_are_an_error(tmp_path, rows):
    with pytest.raises(errors.VocabularyError, match=rf"no row in the embedding of {rows}, the first"):
        opened(tmp_path, byte_level(), CONFIG_6 | {"vocab_size": rows})


def test_ids_with_holes_are_unused(tmp_path):
    data = byte_level()
    data["added_tokens"][-1]["id"] = 8
    source = opened(tmp_path, data, CONFIG_6 | {"vocab_size": 272}).tokenizer
    assert source.tokens[5:] == ["", "", "", "<think>"]
    assert source.types[5:] == [5, 5, 5, 4]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda d: d["model"].update(type="Unigram"), errors.UnsupportedError, "model 'Unigram' is not supported"),
        (lambda d: d.update(model=None), errors.UnsupportedError, "model None"),
        (lambda d: d["model"].update(vocab=[]), errors.VocabularyError, "not a table"),
        (lambda d: d["model"].update(vocab={"a": -1}), errors.VocabularyError, "not a table"),
        (lambda d: d["model"].update(vocab={"a": True}), errors.VocabularyError, "not a table"),
        (lambda d: d["model"].update(vocab={"a": 2**40}), errors.VocabularyError, "not a table"),
        (lambda d: d["model"].update(vocab={"a": 0, "b": 0}), errors.VocabularyError, "id 0 is both 'a' and 'b'"),
        (lambda d: d["model"].update(merges={}), errors.VocabularyError, "merges is not a list"),
        (lambda d: d["added_tokens"][0].update(id=0), errors.VocabularyError, "id 0 is both 'a' and '<s>'"),
        (lambda d: d["added_tokens"][0].update(id="3"), errors.VocabularyError, "added_tokens"),
        (lambda d: d.update(added_tokens={"a": 1}), errors.VocabularyError, "added_tokens"),
        (lambda d: d["model"].update(vocab={"a": 2**30}), errors.VocabularyError, "ids up to"),
        (lambda d: d.update(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
                                            "special_tokens": {}}), errors.VocabularyError, "names no token"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, change, error, match):
    data = copy.deepcopy(byte_level())
    change(data)
    with pytest.raises(error, match=match):
        opened(tmp_path, data, CONFIG_6 | {"vocab_size": 2**31})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"eos_token_id": [4, 5], "bos_token_id": 1}, {"eos_token_ids": [4, 5], "bos_token_id": 1}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": None}, {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 0.6}, {}),
        ({"do_sample": False, "top_k": 40}, {}),
    ],
)
def test_generation_config(tmp_path, given, expected):
    files = {"model.safetensors": file_of(weights("w")), "generation_config.json": given}
    checkpoint = open_checkpoint(folder(tmp_path / "m", files, CONFIG_6))
    assert checkpoint.generation == {"eos_token_ids": [4], "bos_token_id": 3} | expected


def test_a_token_id_that_is_none(tmp_path):
    files = {"model.safetensors": file_of(weights("w")), "generation_config.json": {"eos_token_id": "4"}}
    with pytest.raises(errors.ConfigError, match="eos_token_id: '4' is not a token id"):
        open_checkpoint(folder(tmp_path / "m", files, CONFIG_6))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config__json": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config__json": {"chat_template": "A"}, "chat_template__jinja": b"B"}, "B"),
        ({"tokenizer_config__json": {"chat_template": [{"name": "tool_use", "template": "T"},
                                                       {"name": "default", "template": "D"}]}}, "D"),
        ({"chat_template__json": {"chat_template": "C"}}, "C"),
        ({"tokenizer_config__json": {"chat_template": [{"name": "rag", "template": "R"}]}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_chat_templates(tmp_path, files, expected):
    assert opened(tmp_path, byte_level(), **files).chat_template == expected
