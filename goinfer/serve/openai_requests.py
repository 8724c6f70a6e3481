"""OpenAI request bodies to what the scheduler needs. A field is used, harmless, or a 400 that names it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from goinfer.bundle_format.errors import UsageError
from goinfer.runtime.sampler import SamplingParams
from goinfer.serve.errors import ApiError
from goinfer.serve.fields import Fields, bad, list_of, text

_COMPLETION_TOKENS = 16  # the API's default for /v1/completions; chat has none
_MAX_STOPS = 16
_MAX_PROMPTS = 64
_ROLES = ("system", "developer", "user", "assistant")
_MAX_INT = 2**31 - 1


@dataclass(frozen=True)
class Delivery:
    """How the answer is sent."""

    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class ChatRequest:
    """POST /v1/chat/completions. `messages` are what the chat template gets."""

    messages: list[dict[str, Any]]
    params: SamplingParams
    delivery: Delivery


@dataclass(frozen=True)
class CompletionRequest:
    """POST /v1/completions. Each prompt is text, or token ids; each gets one choice."""

    prompts: list[str | list[int]]
    params: SamplingParams
    delivery: Delivery


def parse_chat(body: Any) -> ChatRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    fields = _fields(body)
    messages = list_of(fields.take("messages"), "messages", _message)
    if not messages:
        raise bad("messages", "want at least one message")
    alternatives = fields.integer("top_logprobs", None, 0, 20)
    logprobs: int | None = None
    if fields.boolean("logprobs"):
        logprobs = alternatives or 0
    elif alternatives is not None:
        raise bad("top_logprobs", "needs logprobs to be true")
    limit = fields.integer("max_tokens", None, 0, _MAX_INT)
    newer = fields.integer("max_completion_tokens", None, 0, _MAX_INT)
    if limit is not None and newer is not None and limit != newer:
        raise bad("max_tokens", f"{limit} contradicts max_completion_tokens {newer}")
    params = _params(fields, newer if limit is None else limit, logprobs)
    delivery = _delivery(fields)
    fields.finish()
    return ChatRequest(messages, params, delivery)


def parse_completion(body: Any) -> CompletionRequest:
    """Raises ApiError (400) naming the field that is wrong."""
    fields = _fields(body)
    prompts = _prompts(fields.take("prompt"))
    logprobs = fields.integer("logprobs", None, 0, 20)
    params = _params(fields, fields.integer("max_tokens", _COMPLETION_TOKENS, 0, _MAX_INT), logprobs)
    delivery = _delivery(fields)
    fields.finish()
    return CompletionRequest(prompts, params, delivery)


def _fields(body: Any) -> Fields:
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    fields = Fields(body)
    text(fields.take("model", ""), "model")  # one server, one model: any name means it
    return fields


def _params(fields: Fields, max_new_tokens: int | None, logprobs: int | None) -> SamplingParams:
    stop = fields.take("stop", [])
    stops = [text(stop, "stop")] if isinstance(stop, str) else list_of(stop, "stop", text)
    if len(stops) > _MAX_STOPS:
        raise bad("stop", f"at most {_MAX_STOPS} strings")
    values: dict[str, Any] = {
        "temperature": fields.number("temperature", 1.0),
        "top_p": fields.number("top_p", 1.0),
        "min_p": fields.number("min_p", 0.0),
        "top_k": fields.integer("top_k", 0, 0, _MAX_INT),
        "repeat_penalty": fields.number("repeat_penalty", 1.0),
        "presence_penalty": fields.number("presence_penalty", 0.0),
        "frequency_penalty": fields.number("frequency_penalty", 0.0),
        "logit_bias": _logit_bias(fields.take("logit_bias", {})),
        "seed": fields.integer("seed", None, -(2**63), 2**64 - 1),
        "stop": tuple(stops),
        "ignore_eos": fields.boolean("ignore_eos"),
    }
    try:
        return SamplingParams(max_new_tokens=max_new_tokens, logprobs=logprobs, **values)
    except UsageError as error:
        name = str(error).split(":")[0].split("[")[0]
        raise ApiError(400, str(error), param=name) from None


def _logit_bias(value: Any) -> Mapping[int, float]:
    if not isinstance(value, dict):
        raise bad("logit_bias", "want an object of token id to number")
    bias: dict[int, float] = {}
    for token, amount in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 12):
            raise bad("logit_bias", f"{token[:20]!r} is not a token id")
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise bad("logit_bias", f"the value of {token} is not a number")
        bias[int(token)] = float(amount)
    return bias


def _delivery(fields: Fields) -> Delivery:
    stream = fields.boolean("stream")
    options = fields.take("stream_options")
    if options is None:
        return Delivery(stream, False)
    if not stream:
        raise bad("stream_options", "needs stream to be true")
    if not isinstance(options, dict):
        raise bad("stream_options", "want an object")
    inner = Fields(options)
    include_usage = inner.boolean("include_usage")
    if inner.boolean("include_obfuscation"):
        raise bad("stream_options.include_obfuscation", "not supported by this server")
    inner.finish()
    return Delivery(stream, include_usage)


def _message(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad(name, "want an object")
    fields = Fields(value)
    role = fields.take("role")
    if role not in _ROLES:
        raise bad(f"{name}.role", f"want one of {', '.join(_ROLES)}")
    # what a client sends back from an earlier answer of ours, empty
    for empty in ("tool_calls", "annotations"):
        if fields.take(empty):
            raise bad(f"{name}.{empty}", "not supported by this server")
    message = {
        "role": "system" if role == "developer" else role,
        "content": _content(fields.take("content"), f"{name}.content"),
    }
    author = fields.take("name")
    if author is not None:
        message["name"] = text(author, f"{name}.name")
    try:
        fields.finish()
    except ApiError as error:
        raise ApiError(400, f"{name}.{error}", param=f"{name}.{error.param}") from None
    return message


def _content(value: Any, name: str) -> str:
    if isinstance(value, list):
        return "".join(list_of(value, name, _text_part))
    return text(value, name)


def _text_part(value: Any, name: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "text" or set(value) - {"type", "text"}:
        raise bad(name, 'only parts {"type": "text", "text": ...} are supported')
    return text(value.get("text"), f"{name}.text")


def _prompts(value: Any) -> list[str | list[int]]:
    if isinstance(value, list) and value and isinstance(value[0], int):
        return [_ids(value, "prompt")]
    if isinstance(value, list):
        if not 1 <= len(value) <= _MAX_PROMPTS:
            raise bad("prompt", f"want 1 to {_MAX_PROMPTS} prompts")
        item: Callable[[Any, str], Any] = text if isinstance(value[0], str) else _ids
        return list_of(value, "prompt", item)
    return [text(value, "prompt")]


def _ids(value: Any, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i <= _MAX_INT for i in value):
        raise bad(name, "want a string or an array of token ids")
    return list(value)
