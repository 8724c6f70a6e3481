"""The released vocabularies against transformers reading the same GGUF files."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings

from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.tokenizer import build_tokenizer_section
from goinfer.compiler.tokenizer_pre import PRE_TOKENIZERS
from goinfer.gates.fixtures import REAL
from goinfer.runtime.chat import ChatTemplate
from goinfer.runtime.chat_prompt import PromptBuilder
from goinfer.runtime.tokenizer import Tokenizer
from tests.tokenizer import chat_cases, samples

pytestmark = [pytest.mark.heavy, pytest.mark.oracle]

_OPEN: dict[str, "Real"] = {}


@dataclass(frozen=True)
class Real:
    """One file, read twice."""

    ours: Tokenizer
    theirs: Any
    template: str | None


def real(family: str) -> Real:
    if family not in _OPEN:
        from transformers import AutoTokenizer

        path = next(c for c in REAL if c.family == family).locate()
        assert path is not None, f"the checkpoint of {family} is not installed"
        checkpoint = open_checkpoint(path)
        assert checkpoint.tokenizer is not None
        ours = Tokenizer(build_tokenizer_section(checkpoint.tokenizer))
        theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        _OPEN[family] = Real(ours, theirs, checkpoint.chat_template)
    return _OPEN[family]


def released_smollm2() -> Any:
    """What transformers makes of the GGUF, with the digits isolated as the released tokenizer.json does (and as the
    file's pre-tokenizer name says; transformers does not read it)."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import pre_tokenizers

    backend = Backend.from_str(real("llama").theirs.backend_tokenizer.to_str())
    cut = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(cut)
    return backend


def test_smollm2_sample() -> None:
    ours, theirs = real("llama").ours, released_smollm2()
    for parse_special in (True, False):
        theirs.encode_special_tokens = not parse_special
        for text in [*samples.ALL, samples.LONG]:
            ids = theirs.encode(text).ids
            assert ours.encode(text, parse_special=parse_special) == ids, text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False), text


@settings(max_examples=400, deadline=None)
@given(text=samples.texts(40))
def test_smollm2_random(text: str) -> None:
    assert real("llama").ours.encode(text) == released_smollm2_once().encode(text).ids


_RELEASED: list[Any] = []


def released_smollm2_once() -> Any:
    if not _RELEASED:
        _RELEASED.append(released_smollm2())
    return _RELEASED[0]


def test_smollm2_as_transformers_reads_the_file_differs_only_at_digits() -> None:
    """Spaces before a digit: the released tokenizer keeps a run of them together, transformers' reading of the GGUF
    leaves the last one to the number. Text without digits is the same."""
    ours, theirs = real("llama").ours, real("llama").theirs
    for text in [*samples.ALL, *samples.LONG.split("\n")]:
        if not any(ch.isnumeric() for ch in text):
            assert ours.encode(text) == theirs(text)["input_ids"], text
    assert ours.encode("a   12") != theirs("a   12")["input_ids"]
    assert ours.encode("a 12") == theirs("a 12")["input_ids"]


def test_gemma3_sample() -> None:
    ours, theirs = real("gemma3_text").ours, real("gemma3_text").theirs
    for text in [*samples.ALL, samples.LONG]:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ids.count(ours.bos) == 1 + text.count("<bos>")
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), text
        plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text, add_special=False, parse_special=False) == plain, text


@settings(max_examples=400, deadline=None)
@given(text=samples.texts(40))
def test_gemma3_random(text: str) -> None:
    model = real("gemma3_text")
    assert model.ours.encode(text) == model.theirs(text)["input_ids"]


def test_special_ids_are_theirs() -> None:
    for family in ("llama", "gemma3_text"):
        ours, theirs = real(family).ours, real(family).theirs
        assert (ours.bos, ours.eos, ours.pad) == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
        added = theirs.added_tokens_decoder
        assert ours.special_ids == {i for i, token in added.items() if token.special}
        assert ours.added_tokens == {token.content: i for i, token in added.items()}


@pytest.mark.parametrize("messages", [chat_cases.MESSAGES, chat_cases.WITH_SYSTEM])
def test_smollm2_conversation(messages: list[dict[str, Any]]) -> None:
    model = real("llama")
    assert model.template is not None
    builder = PromptBuilder(model.ours, ChatTemplate.for_tokenizer(model.template, model.ours))
    prompt = builder.build(messages)
    assert prompt.text == model.theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    expected = model.theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert prompt.ids == expected == released_smollm2_once().encode(prompt.text).ids
    assert builder.build(messages, trust_content=True).ids == prompt.ids


def test_gemma3_conversation() -> None:
    """bos comes from the template, once."""
    model = real("gemma3_text")
    builder = PromptBuilder(model.ours, ChatTemplate.for_tokenizer(chat_cases.ALTERNATING, model.ours))
    for messages in (chat_cases.MESSAGES, chat_cases.WITH_SYSTEM, chat_cases.PARTS):
        expected = model.theirs.apply_chat_template(
            messages, chat_template=chat_cases.ALTERNATING, add_generation_prompt=True
        )["input_ids"]
        got = builder.build(messages).ids
        assert got == expected
        assert got.count(model.ours.bos) == 1


def test_patterns_are_those_of_transformers() -> None:
    """Every pre-tokenizer name that both know is cut by the same pattern."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    both = PRE_TOKENIZERS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert {"llama-bpe", "qwen2", "tekken", "gpt-4o", "qwen35"} <= both
    assert {n: PRE_TOKENIZERS[n].pattern for n in both} == {n: GGUF_PRE_TOKENIZER_SPLITS[n] for n in both}
