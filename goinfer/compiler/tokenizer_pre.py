"""Pre-tokenizers by the names GGUF files give them. A name that is not here is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from goinfer.compiler import unicode_classes as uc
from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.tokenizer_spec import GPT2_PATTERN
from goinfer.compiler.unicode_classes import CodeSet

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN_PATTERN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_TAIL}"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    rf"|\p{{N}}{{1,3}}{_TAIL}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is cut into words before merging. `digits` isolates every digit first."""

    pattern: str
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token is taken whole

    def stages(self) -> list[str | CodeSet]:
        """The cuts in order; a bare set isolates each of its characters."""
        return [uc.numeric(), self.pattern] if self.digits else [self.pattern]


_GPT2 = PreTokenizer(GPT2_PATTERN)
_DIGITS_GPT2 = PreTokenizer(GPT2_PATTERN, digits=True)
_LLAMA3 = PreTokenizer(LLAMA3_PATTERN, ignore_merges=True)
_QWEN2 = PreTokenizer(QWEN2_PATTERN, nfc=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": _GPT2,
        "gpt-2": _GPT2,
        "phi-2": _GPT2,
        "smollm": _DIGITS_GPT2,
        "starcoder": _DIGITS_GPT2,
        "refact": _DIGITS_GPT2,
        "codeshell": _DIGITS_GPT2,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama-bpe": _LLAMA3,
        "qwen2": _QWEN2,
        "deepseek-r1-qwen": PreTokenizer(QWEN2_PATTERN),
        "qwen35": PreTokenizer(QWEN35_PATTERN, nfc=True),
        "tekken": PreTokenizer(TEKKEN_PATTERN, ignore_merges=True),
        "gpt-4o": PreTokenizer(GPT4O_PATTERN),
    }
)


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer called `name`; an empty name is `default`."""
    found = PRE_TOKENIZERS.get(name or "default")
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedError(f"tokenizer: pre-tokenizer {name!r} is not supported (supported: {known})")
    return found
