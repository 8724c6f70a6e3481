"""Messages -> ids, so that what a user writes stays text.

A template concatenates its own control tokens with message content. Content that spells a control token
(`<|im_end|>`) would become that token. Here a guard, a character that occurs nowhere else, is put in front of every
such spelling before rendering; the tokenizer takes nothing behind a guard for a token and drops it. Content without
such spellings is rendered and encoded exactly as without guards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goinfer.runtime.chat import ChatTemplate, Message, chat_messages, plain_data
from goinfer.runtime.chat_errors import TemplateError
from goinfer.runtime.tokenizer import Tokenizer
from goinfer.runtime.tokenizer_match import LongestMatch

_NONCHARACTERS = [*range(0xFDD0, 0xFDF0), *(plane << 16 | low for plane in range(1, 17) for low in (0xFFFE, 0xFFFF))]


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation and its ids."""

    text: str
    ids: list[int]


class PromptBuilder:
    """A tokenizer and a template that belong together. Control tokens are the special ones and those other added
    tokens that the template itself writes (`<think>`). The latter stay in what an assistant said: templates take a
    model's own output apart by them."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        special, written = _control_texts(tokenizer, template)
        self._assistant = _Guards(special, template.literals)
        self._others = _Guards([*special, *written], template.literals)

    def build(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        trust_content: bool = False,
        **variables: Any,
    ) -> Prompt:
        """Render and encode. With `trust_content` control tokens spelled in the input become those tokens."""
        chat, extra = chat_messages(messages), {"tools": plain_data(tools), "documents": plain_data(documents)}
        guard = ""
        if not trust_content:
            guard = self._choose_guard([chat, extra])
            chat = [self._guards_for(message).put(message, guard) for message in chat]
            extra = self._others.put(extra, guard)
        text = self._template.render(chat, add_generation_prompt, **extra, **variables)
        ids = encode_chat(self._tokenizer, text, guard)
        return Prompt(text.replace(guard, "") if guard else text, ids)

    def _guards_for(self, message: Message) -> "_Guards":
        return self._assistant if message.get("role") == "assistant" else self._others

    def _choose_guard(self, inputs: Any) -> str:
        used = set(self._template.source)
        _collect_characters(inputs, used)
        for code in _NONCHARACTERS:
            if chr(code) not in used:
                return chr(code)
        raise TemplateError("chat template: the messages use every noncharacter of Unicode; remove one")


class _Guards:
    """Where guards go so that no text becomes one of `controls`."""

    def __init__(self, controls: Sequence[str], literals: Sequence[str]) -> None:
        self._controls = LongestMatch(controls)
        self._longest = max(map(len, controls), default=0)
        self._beginnings = frozenset(text[:cut] for text in controls for cut in range(1, len(text)))
        self._endings = _reachable_endings(controls, literals)

    def put(self, value: Any, guard: str) -> Any:
        """A copy with guards in all strings that are values; keys are the template's vocabulary."""
        if isinstance(value, str):
            return self._put_in_text(value, guard)
        if isinstance(value, dict):
            return {key: self.put(item, guard) for key, item in value.items()}
        if isinstance(value, list):
            return [self.put(item, guard) for item in value]
        return value

    def _put_in_text(self, text: str, guard: str) -> str:
        """Guards before spelled-out control tokens, before an end that what follows could complete to one, and
        before a beginning that completes one which the template started."""
        places = set()
        at = 0
        while hit := self._controls.search(text, at):
            places.add(hit[0])
            at = hit[0] + 1
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at:] in self._beginnings:
                places.add(at)
        if self._endings is not None and text and self._endings.end(text, 0):
            places.add(0)
        parts, done = [], 0
        for at in sorted(places):
            parts += [text[done:at], guard]
            done = at
        return "".join([*parts, text[done:]])


def encode_chat(tokenizer: Tokenizer, rendered: str, guard: str = "") -> list[int]:
    """Ids of a rendered template. The template writes bos where the model wants it, so none is added."""
    return tokenizer.encode_guarded(rendered, guard) if guard else tokenizer.encode(rendered, add_special=False)


def _control_texts(tokenizer: Tokenizer, template: ChatTemplate) -> tuple[list[str], list[str]]:
    """Spellings of control tokens, and of other added tokens that the template writes."""
    literals = "\0".join(template.literals)
    special = tokenizer.special_ids
    added = tokenizer.added_tokens.items()
    written = [t for t, i in added if i not in special and not t.isspace() and t in literals]
    return [text for text, token in added if token in special], written


def _reachable_endings(controls: Sequence[str], literals: Sequence[str]) -> LongestMatch | None:
    """Ends of control tokens whose beginning the template can write right before a value, like `<|` + role."""
    longest = max(map(len, controls), default=0)
    tails = {text[-size:] for text in literals for size in range(1, min(longest, len(text) + 1))}
    endings = {text[cut:] for text in controls for cut in range(1, len(text)) if text[:cut] in tails}
    return LongestMatch(endings) if endings else None


def _collect_characters(value: Any, into: set[str]) -> None:
    if isinstance(value, str):
        into.update(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect_characters(key, into)
            _collect_characters(item, into)
    elif isinstance(value, list):
        for item in value:
            _collect_characters(item, into)
