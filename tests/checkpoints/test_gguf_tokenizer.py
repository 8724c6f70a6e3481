"""Tokenizers of GGUF metadata: every field, unequal tables, ids out of range, more tokens than rows."""

import pytest

from goinfer.compiler import errors
from goinfer.compiler.checkpoints import open_checkpoint
from tests.checkpoints.gguf_forge import ARRAY, BOOL, F32_VALUE, I32, STRING, TENSORS, U32, Tensor, Value, model

TOKENS = ["<pad>", "<s>", "<|im_end|>", "a", "b", "ab", "</s>"]
TYPES = [3, 3, 3, 1, 1, 1, 4]
KEYS = {
    "model": Value(STRING, "gpt2"), "pre": Value(STRING, "smollm"), "tokens": Value(STRING, TOKENS),
    "token_type": Value(I32, TYPES), "merges": Value(STRING, ["a b"]), "bos_token_id": Value(U32, 1),
    "eos_token_id": Value(U32, 0), "padding_token_id": Value(U32, 0), "add_bos_token": Value(BOOL, 1),
}  # fmt: skip


def opened(tmp_path, drop=(), tensors=TENSORS, metadata=(), **changes):
    keys = {key: value for key, value in (KEYS | changes).items() if key not in drop}
    named = [(f"tokenizer.ggml.{key}", value) for key, value in keys.items()]
    return open_checkpoint(model(*named, *metadata, tensors=tensors).write(tmp_path / "m.gguf"))


def test_every_field(tmp_path):
    checkpoint = opened(tmp_path)
    source = checkpoint.tokenizer
    assert (source.kind, source.pre, source.tokens, source.types) == ("bpe", "smollm", TOKENS, TYPES)
    assert (source.merges, source.scores, source.json) == (["a b"], None, None)
    assert (source.bos, source.eos, source.unk, source.pad) == (1, 0, None, 0)
    assert (source.add_bos, source.add_eos, source.add_space_prefix) == (True, False, False)
    assert checkpoint.generation == {"add_bos": True, "bos_token_id": 1, "pad_token_id": 0, "eos_token_ids": [0, 2]}


def test_scored_vocabularies_have_other_defaults(tmp_path):
    scores = Value(F32_VALUE, [0.5] * 7)
    drop = ("pre", "merges", "add_bos_token")
    source = opened(tmp_path, drop, model=Value(STRING, "llama"), scores=scores).tokenizer
    assert (source.kind, source.pre, source.merges, source.scores) == ("spm", "default", None, [0.5] * 7)
    assert (source.add_bos, source.add_space_prefix) == (True, True)


def test_end_of_turn_tokens_must_be_control_tokens(tmp_path):
    ids = opened(tmp_path, eot_token_id=Value(U32, 4), eom_token_id=Value(U32, 0)).generation["eos_token_ids"]
    assert ids == [0, 4, 2]


def test_recommended_sampling(tmp_path):
    more = (("general.sampling.temp", Value(F32_VALUE, 0.5)), ("general.sampling.top_k", Value(I32, 20)))
    generation = opened(tmp_path, metadata=more).generation
    assert (generation["temperature"], generation["top_k"]) == (0.5, 20)


def test_chat_template(tmp_path):
    assert opened(tmp_path).chat_template is None
    template = ("tokenizer.chat_template", Value(STRING, "{{ messages }}"))
    assert opened(tmp_path, metadata=(template,)).chat_template == "{{ messages }}"


def test_none_as_converters_write_it(tmp_path):
    source = opened(tmp_path, bos_token_id=Value(U32, 0xFFFFFFFF), eos_token_id=Value(I32, -1)).tokenizer
    assert (source.bos, source.eos) == (None, None)


def test_tokens_that_are_not_utf8(tmp_path):
    tokens = [*TOKENS[:-1], b"\xff\xfe"]
    assert opened(tmp_path, tokens=Value(STRING, tokens)).tokenizer.tokens == tokens


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model": Value(STRING, "bert")}, errors.UnsupportedError, "'bert': not supported: known are gpt2, llama"),
        ({"surprise": Value(U32, 1)}, errors.UnsupportedError, "'tokenizer.ggml.surprise': not supported"),
        ({"add_sep_token": Value(BOOL, 1)}, errors.UnsupportedError, "add_sep_token"),
        ({"precompiled_charsmap": Value(U32, [1])}, errors.UnsupportedError, "precompiled_charsmap"),
        ({"tokens": Value(STRING, [])}, errors.VocabularyError, "tokens: missing or empty"),
        ({"tokens": Value(U32, [1])}, errors.VocabularyError, "tokens: not a list of strings"),
        ({"tokens": Value(STRING, "a")}, errors.VocabularyError, "tokens: not a list of strings"),
        ({"merges": Value(U32, [1])}, errors.VocabularyError, "merges: not a list of strings"),
        ({"merges": Value(STRING, [b"\xff b"])}, errors.VocabularyError, "merges: not a list of strings"),
        ({"token_type": Value(I32, [1])}, errors.VocabularyError, "token_type: not one value for each of the 7"),
        ({"scores": Value(F32_VALUE, [0.0] * 8)}, errors.VocabularyError, "scores: not one value"),
        ({"scores": Value(F32_VALUE, [float("nan")] * 7)}, errors.VocabularyError, "scores: not all numbers"),
        ({"scores": Value(STRING, ["0"] * 7)}, errors.VocabularyError, "scores: not all numbers"),
        ({"bos_token_id": Value(U32, 7)}, errors.VocabularyError, "bos_token_id: 7 is not a token"),
        ({"eos_token_id": Value(I32, -2)}, errors.VocabularyError, "eos_token_id: -2"),
        ({"eos_token_id": Value(STRING, "2")}, errors.VocabularyError, "eos_token_id: '2'"),
        ({"add_bos_token": Value(U32, 1)}, errors.VocabularyError, "add_bos_token: 1 is not true or false"),
        ({"tokens": Value(STRING, [f"t{i}" for i in range(21)])}, errors.VocabularyError, "21 tokens, but .* 20 rows"),
    ],
)
def test_what_is_refused(tmp_path, changes, error, match):
    with pytest.raises(error, match=match):
        opened(tmp_path, **changes)


def test_off_switches_say_nothing(tmp_path):
    assert opened(tmp_path, add_sep_token=Value(BOOL, 0), precompiled_charsmap=Value(U32, [])).tokenizer is not None


@pytest.mark.parametrize(("rows", "good"), [(7, True), (8, True), (272, True), (6, False), (1, False)])
def test_q05_rows_and_tokens(tmp_path, rows, good):
    tensors = (Tensor("token_embd.weight", (64, rows), 8), *TENSORS[1:])
    if not good:
        with pytest.raises(errors.VocabularyError, match=rf"7 tokens, but the embedding has {rows} rows"):
            opened(tmp_path, tensors=tensors)
        return
    checkpoint = opened(tmp_path, tensors=tensors)
    assert checkpoint.config.require("vocab_size") == rows
    assert len(checkpoint.tokenizer.tokens) == 7


def test_arrays_of_arrays_do_not_reach_the_tokenizer(tmp_path):
    with pytest.raises(errors.HeaderFormatError, match="array of unknown type 9"):
        opened(tmp_path, tokens=Value(ARRAY, []))
