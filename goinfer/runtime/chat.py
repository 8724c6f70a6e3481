"""Chat templates: messages -> the text a model was trained on. Renders what transformers renders."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateSyntaxError

from goinfer.runtime.chat_budget import RenderLimits
from goinfer.runtime.chat_errors import TemplateError
from goinfer.runtime.chat_instrument import literal_texts
from goinfer.runtime.chat_sandbox import Sandbox
from goinfer.runtime.tokenizer import Tokenizer

_MAX_SOURCE = 1 << 20
_MAX_DEPTH = 64
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template. Rendering is a function of its arguments and the clock; threads may share it.

    tokens: texts of special tokens by the names templates use (`bos_token`, `eos_token`, ..).
    clock: what `strftime_now` reads.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
        limits: RenderLimits | None = None,
    ) -> None:
        if len(source) > _MAX_SOURCE:
            raise TemplateError(f"chat template: {len(source)} characters, the limit is {_MAX_SOURCE}")
        self.source = source
        self._tokens = dict(tokens or {})
        self._limits = limits or RenderLimits()
        self._sandbox = Sandbox(clock)
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as e:
            raise TemplateError(f"chat template: line {e.lineno}: {_line(e.message or e)}") from None
        except (RecursionError, MemoryError, SyntaxError, OverflowError, ValueError) as e:
            raise TemplateError(f"chat template: cannot be compiled ({type(e).__name__})") from None

    @classmethod
    def for_tokenizer(cls, source: str, tokenizer: Tokenizer, **options: Any) -> "ChatTemplate":
        """With the special tokens of `tokenizer`."""
        names = {
            "bos_token": tokenizer.bos,
            "eos_token": tokenizer.eos,
            "unk_token": tokenizer.unk,
            "pad_token": tokenizer.pad,
        }
        tokens = {
            name: tokenizer.token_bytes(i).decode("utf-8", "replace") for name, i in names.items() if i is not None
        }
        return cls(source, tokens, **options)

    @cached_property
    def literals(self) -> list[str]:
        """Every piece of text that the template itself can write."""
        return literal_texts(self._sandbox, self.source)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text. `variables` are extra names for the template (`enable_thinking`, ..).

        Raises TemplateRefusalError where the template refuses the conversation, TemplateLimitError where it takes
        too long or writes too much, TemplateError for every other failure.
        """
        values = {
            **self._tokens,
            **{name: plain_data(value) for name, value in variables.items()},
            "messages": chat_messages(messages),
            "tools": plain_data(tools),
            "documents": plain_data(documents),
            "add_generation_prompt": add_generation_prompt,
        }
        self._sandbox.budget.start(self._limits)
        try:
            return self._template.render(values)
        except TemplateError:
            raise
        except Exception as e:  # whatever Python error a template provokes, it is the template's
            line = _template_line(e)
            where = f"line {line}: " if line else ""
            raise TemplateError(f"chat template: {where}{type(e).__name__}: {_line(e)}") from None


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates expect them: plain data, without keys whose value is None, reasoning under every name
    in use."""
    out = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise TemplateError(f"chat template: a message is a {type(message).__name__}, not a mapping")
        plain = {str(k): plain_data(v) for k, v in message.items() if v is not None}
        reasoning = next((plain[key] for key in _REASONING if key in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        out.append(plain)
    return out


def plain_data(value: Any, depth: int = 0) -> Any:
    """A copy out of JSON types only: a template gets no objects whose methods it could call."""
    if depth > _MAX_DEPTH:
        raise TemplateError(f"chat template: the input is nested more than {_MAX_DEPTH} deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {plain_data(k, depth + 1): plain_data(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(v, depth + 1) for v in value]
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    return f"<{type(value).__name__}>"


def _template_line(error: BaseException) -> int | None:
    """The innermost template line of a traceback."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def _line(message: object) -> str:
    return " ".join(str(message).split())
