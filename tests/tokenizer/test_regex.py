"""Pre-tokenisation patterns against the engine they were written for."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers import Regex, pre_tokenizers

from goinfer.bundle_format.tokenizer_layout import ARRAYS
from goinfer.compiler import tokenizer_pre, unicode_classes
from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.tokenizer_regex import compile_patterns
from goinfer.compiler.tokenizer_spec import GPT2_PATTERN
from goinfer.runtime.tokenizer_words import ClassSplitter
from tests.tokenizer import make_unicode_classes, samples

EVERY = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
ASSIGNED = "".join(map(chr, np.flatnonzero(~unicode_classes.category("C"))))
PATTERNS = {
    "gpt2": GPT2_PATTERN,
    "llama3": tokenizer_pre.LLAMA3_PATTERN,
    "qwen2": tokenizer_pre.QWEN2_PATTERN,
    "qwen35": tokenizer_pre.QWEN35_PATTERN,
    "tekken": tokenizer_pre.TEKKEN_PATTERN,
    "gpt4o": tokenizer_pre.GPT4O_PATTERN,
    "ranges": r"[一-龥぀-ゟァ-ヾ]+|[!-/:-@\[-`{-~]|[^a-c\]\-x]{2,3}?|\x41\u00e9|\.",
    "possessive": r"(?>\s+)\P{L}|[\p{P}$+<=>^~|]++|\p{^N}?+a|(ab|a)c{2}",
}


def splitter(*stages: object) -> ClassSplitter:
    compiled = compile_patterns(stages)  # type: ignore[arg-type]
    arrays = {
        "class_index": memoryview(compiled.class_index.tobytes()).cast(ARRAYS["class_index"]),
        "class_blocks": memoryview(compiled.class_blocks.tobytes()),
    }
    return ClassSplitter(compiled.patterns, arrays)


def theirs(pattern: str, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_code_point_and_the_samples(name: str) -> None:
    ours = splitter(PATTERNS[name])
    spaced = "".join(f"{ch} a" for ch in EVERY[::97])
    for text in [ASSIGNED, spaced, *samples.ALL, samples.LONG]:
        assert ours.words(text) == theirs(PATTERNS[name], text)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=150, deadline=None)
@given(text=samples.texts())
def test_random_text(name: str, text: str) -> None:
    assert splitter_of(name).words(text) == theirs(PATTERNS[name], text)


_SPLITTERS: dict[str, ClassSplitter] = {}


def splitter_of(name: str) -> ClassSplitter:
    if name not in _SPLITTERS:
        _SPLITTERS[name] = splitter(PATTERNS[name])
    return _SPLITTERS[name]


def test_digits_are_isolated_before_the_pattern() -> None:
    ours = splitter(unicode_classes.numeric(), GPT2_PATTERN)
    cutter = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.Split(Regex(GPT2_PATTERN), "isolated")]
    )
    digits = "a".join(map(chr, np.flatnonzero(unicode_classes.numeric())))
    newer = "".join(map(chr, range(0x11D00, 0x11E00))) + "".join(map(chr, range(0x16FE0, 0x17000)))
    for text in [ASSIGNED, digits, newer, *samples.ALL]:
        assert ours.words(text) == [piece for piece, _ in cutter.pre_tokenize_str(text)]


def test_committed_table_is_that_of_the_engine() -> None:
    """Every category as committed matches its own class from end to end, so the partition is the engine's. A newer
    Unicode in `tokenizers` shows here: run tests/tokenizer/make_unicode_classes.py and look at the diff."""
    seen = 0
    for name in make_unicode_classes.CATEGORIES:
        members = "".join(map(chr, np.flatnonzero(unicode_classes.category(name))))
        left = pre_tokenizers.Split(Regex(rf"\p{{{name}}}+"), "removed").pre_tokenize_str(members)
        assert not left, (name, [hex(ord(piece[0])) for piece, _ in left][:5])
        seen += len(members)
    assert seen == len(EVERY)
    spaces = unicode_classes.space()
    inside = "".join(ch for ch in EVERY if spaces[ord(ch)])
    outside = "".join(ch for ch in EVERY if not spaces[ord(ch)])
    cutter = pre_tokenizers.Split(Regex(r"\s"), "removed")
    assert [len(cutter.pre_tokenize_str(text)) for text in (inside, outside)] == [0, 1]


REFUSED = (
    "^a  a$  .  \\b  \\d  \\w  \\1  (?<=a)b  [[:alpha:]]  [a&&b]  [a  (a  a)  (?i)a  a{2}+  \\p{Greek}  (?i:é)  a{  \\"
)


@pytest.mark.parametrize("pattern", [*REFUSED.split("  "), "(?i:[a-z])", r"[\s-z]", "(?#c)a", "(?P<n>a)"])
def test_unknown_syntax_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match=r"^tokenizer: ") as error:
        compile_patterns([pattern])
    assert "\n" not in str(error.value)


def test_unknown_pre_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedError, match=r"pre-tokenizer 'mystery-bpe' is not supported \(supported: codeshell, "
    ):
        tokenizer_pre.pre_tokenizer("mystery-bpe")
    assert tokenizer_pre.pre_tokenizer("") is tokenizer_pre.pre_tokenizer("default")


def test_patterns_are_few_classes() -> None:
    """The rewritten patterns are plain `re` over few symbols, so that compiling them takes no time."""
    for pattern in PATTERNS.values():
        compiled = compile_patterns([pattern])
        assert compiled.patterns[0].isascii()
        assert compiled.class_blocks.max() < 40
        re.compile(compiled.patterns[0].encode("ascii"))
