"""The text rules of a tokenizer.json: normalizer, pre-tokenizer, decoder."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from goinfer.compiler import unicode_classes as uc
from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.tokenizer_spec import GPT2_PATTERN, META_SPACE, Kind, PrefixSpace
from goinfer.compiler.unicode_classes import CodeSet

Json = Mapping[str, Any]
Steps = tuple[tuple[str, ...], ...]

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True)
class TextRules:
    """How text becomes words, and what decoding drops. An spm normalizer lists no meta-space steps: they are
    implied (a space and a meta space are the same there) or said by `prefix_space`."""

    kind: Kind
    normalizer: Steps
    stages: tuple[str | CodeSet, ...] = ()
    prefix_space: PrefixSpace = "none"
    split_spaces: bool = False
    strip_left: int = 0


def _refused(what: str, node: Json) -> UnsupportedError:
    text = ", ".join(f"{k}={v!r}" for k, v in node.items())
    return UnsupportedError(f"tokenizer.json: {what} with {text} is not supported")


def _flat(node: Json | None, key: str) -> list[Json]:
    """The components of a node, sequences unfolded."""
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [part for inner in node[key] for part in _flat(inner, key)]
    return [node]


def read_normalizer(node: Json | None) -> Steps:
    """Steps ("NFC",), ("replace", from, to), ("prepend", text) in order."""
    steps: list[tuple[str, ...]] = []
    for part in _flat(node, "normalizers"):
        if part["type"] in _FORMS:
            steps.append((part["type"],))
        elif part["type"] == "Replace" and "String" in part["pattern"]:
            steps.append(("replace", part["pattern"]["String"], part["content"]))
        elif part["type"] == "Prepend":
            steps.append(("prepend", part["prepend"]))
        else:
            raise _refused("a normalizer", part)
    return tuple(steps)


def read_pre_tokenizer(node: Json | None, normalizer: Steps) -> TextRules:
    """The rules up to the model. Byte level or not is seen here."""
    parts = _flat(node, "pretokenizers")
    if any(part["type"] == "ByteLevel" for part in parts):
        return _byte_level(parts, normalizer)
    return _spm(parts, normalizer)


def _byte_level(parts: Sequence[Json], normalizer: Steps) -> TextRules:
    stages: list[str | CodeSet] = []
    prefix: PrefixSpace = "none"
    for i, part in enumerate(parts):
        if part["type"] == "ByteLevel":
            if i != len(parts) - 1 or (part.get("add_prefix_space") and i):
                raise _refused("a ByteLevel pre-tokenizer in this place", part)
            if part.get("add_prefix_space"):
                prefix = "always"
            if part.get("use_regex", True):
                stages.append(GPT2_PATTERN)
        elif part["type"] == "Split":
            stages.append(_split_pattern(part))
        elif part["type"] == "Digits" and part.get("individual_digits"):
            stages.append(uc.numeric())
        else:
            raise _refused("a pre-tokenizer", part)
    return TextRules("byte_level", normalizer, tuple(stages), prefix)


def _split_pattern(part: Json) -> str:
    """Only isolating splits, in either of their two spellings."""
    isolated = part["behavior"] == "Isolated"
    kept_matches = part["behavior"] == "Removed" and part.get("invert")
    if not isolated and not kept_matches:
        raise _refused("a Split pre-tokenizer", part)
    pattern = part["pattern"]
    if "Regex" in pattern:
        return str(pattern["Regex"])
    return re.sub(r"([^\w\s])", r"\\\1", str(pattern["String"]))


def _spm(parts: Sequence[Json], normalizer: Steps) -> TextRules:
    steps, prefix = _spm_steps(normalizer)
    spaces = ("replace", " ", META_SPACE) in normalizer
    split = False
    for part in parts:
        if part["type"] == "Metaspace" and part.get("replacement", META_SPACE) == META_SPACE and prefix == "none":
            old = "always" if part.get("add_prefix_space", True) else "never"
            scheme = part.get("prepend_scheme", old)
            prefix = scheme if scheme != "never" else "none"
            spaces, split = True, part.get("split", True)
        elif part["type"] == "Split" and part["pattern"] == {"String": " "} and spaces:
            continue  # no space is left to split at
        else:
            raise _refused("a pre-tokenizer", part)
    if not spaces:
        raise UnsupportedError("tokenizer.json: a BPE model neither byte level nor with meta spaces is not supported")
    return TextRules("spm", steps, (), prefix, split)


def _spm_steps(normalizer: Steps) -> tuple[Steps, PrefixSpace]:
    """Steps other than the meta space ones, and the prefix those say."""
    steps, prefix = [], "none"
    for step in normalizer:
        if step == ("prepend", META_SPACE):
            prefix = "prepend"
        elif step != ("replace", " ", META_SPACE):
            steps.append(step)
    return tuple(steps), prefix  # type: ignore[return-value]


def read_decoder(node: Json | None, rules: TextRules) -> TextRules:
    """`rules` with what decoding drops at the start; a decoder that does not fit the pre-tokenizer is refused."""
    parts = _flat(node, "decoders")
    if rules.kind == "byte_level":
        for part in parts:
            if part["type"] != "ByteLevel":
                raise _refused("a decoder", part)
        return rules
    strip = 0
    for part in parts:
        if part["type"] == "Metaspace":
            strip = 1 if part.get("prepend_scheme", "always") != "never" else 0
        elif part["type"] == "Strip" and part.get("content") == " " and not part.get("stop"):
            strip = int(part["start"])
        elif part["type"] == "Replace" and part["pattern"] == {"String": META_SPACE} and part["content"] == " ":
            continue
        elif part["type"] not in ("ByteFallback", "Fuse"):
            raise _refused("a decoder", part)
    return replace(rules, strip_left=strip)


def added_spelling(text: str, rules: TextRules) -> str:
    """How an added token marked `normalized` is spelled in normalised text."""
    if rules.kind == "spm":
        text = text.replace(META_SPACE, " ")
        text = " " + text if rules.prefix_space == "prepend" else text
    for step in rules.normalizer:
        if step[0] == "replace":
            text = text.replace(step[1], step[2])
        elif step[0] == "prepend":
            text = step[1] + text
        else:
            text = unicodedata.normalize(step[0], text)  # type: ignore[arg-type]
    return text
