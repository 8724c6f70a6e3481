"""OpenAI request bodies to what the scheduler needs. A field is used, harmless, or a 400 that names it."""

from dataclasses import dataclass
from typing import Any

from goinfer.runtime.checks import prompt_text, text
from goinfer.runtime.messages import check_messages
from goinfer.runtime.sampler import MAX_COUNT, SamplingParams
from goinfer.serve.errors import ApiError
from goinfer.serve.fields import Fields, bad

_COMPLETION_TOKENS = 16  # the API's default for /v1/completions; chat has none
_MAX_STOPS = 16
_MAX_PROMPTS = 64
_SAMPLING = (
    "temperature", "top_p", "min_p", "top_k", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed",
    "ignore_eos",
)  # fmt: skip


@dataclass(frozen=True)
class Delivery:
    """How the answer is sent."""

    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class ChatRequest:
    """POST /v1/chat/completions. `messages` are what the chat template gets. Without a `model` any is meant."""

    model: str | None
    messages: list[dict[str, Any]]
    params: SamplingParams
    delivery: Delivery


@dataclass(frozen=True)
class CompletionRequest:
    """POST /v1/completions. Each prompt is text, or token ids; each gets one choice. Without a `model` any is meant."""

    model: str | None
    prompts: list[str | list[int]]
    params: SamplingParams
    delivery: Delivery


def parse_chat(body: Any) -> ChatRequest:
    """Raises ApiError (400) or ArgumentError naming the field that is wrong."""
    fields = _fields(body)
    model = _model(fields)
    messages = check_messages(fields.take("messages"))
    alternatives = fields.integer("top_logprobs", None, 0, 20)
    logprobs: int | None = None
    if fields.boolean("logprobs"):
        logprobs = alternatives or 0
    elif alternatives is not None:
        raise bad("top_logprobs", "needs logprobs to be true")
    limit = fields.integer("max_tokens", None, 0, MAX_COUNT)
    newer = fields.integer("max_completion_tokens", None, 0, MAX_COUNT)
    if limit is not None and newer is not None and limit != newer:
        raise bad("max_tokens", f"{limit} contradicts max_completion_tokens {newer}")
    params = _params(fields, newer if limit is None else limit, logprobs)
    delivery = _delivery(fields)
    fields.finish()
    return ChatRequest(model, messages, params, delivery)


def parse_completion(body: Any) -> CompletionRequest:
    """Raises ApiError (400) or ArgumentError naming the field that is wrong."""
    fields = _fields(body)
    model = _model(fields)
    prompts = _prompts(fields.take("prompt"))
    logprobs = fields.integer("logprobs", None, 0, 20)
    params = _params(fields, fields.integer("max_tokens", _COMPLETION_TOKENS, 0, MAX_COUNT), logprobs)
    delivery = _delivery(fields)
    fields.finish()
    return CompletionRequest(model, prompts, params, delivery)


def _fields(body: Any) -> Fields:
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return Fields(body)


def _model(fields: Fields) -> str | None:
    model = fields.take("model")
    return None if model is None else text("model", model)


def _params(fields: Fields, max_new_tokens: int | None, logprobs: int | None) -> SamplingParams:
    stop = fields.take("stop", ())
    if isinstance(stop, list) and len(stop) > _MAX_STOPS:
        raise bad("stop", f"at most {_MAX_STOPS} strings")
    given = {name: fields.take(name) for name in _SAMPLING}
    values = {name: value for name, value in given.items() if value is not None}
    bias = _logit_bias(fields.take("logit_bias", {}))
    return SamplingParams(
        **{"temperature": 1.0, **values}, logit_bias=bias, stop=stop, max_new_tokens=max_new_tokens, logprobs=logprobs
    )


def _logit_bias(value: Any) -> dict[int, Any]:
    """JSON has strings for keys; the numbers are checked with the other settings."""
    if not isinstance(value, dict):
        raise bad("logit_bias", "want an object of token id to number")
    for token in value:
        if not (token.isascii() and token.isdigit() and len(token) < 12):
            raise bad("logit_bias", f"{token[:20]!r} is not a token id")
    return {int(token): amount for token, amount in value.items()}


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


def _prompts(value: Any) -> list[str | list[int]]:
    if isinstance(value, list) and value and isinstance(value[0], int):
        return [_ids("prompt", value)]
    if isinstance(value, list):
        if not 1 <= len(value) <= _MAX_PROMPTS:
            raise bad("prompt", f"want 1 to {_MAX_PROMPTS} prompts")
        check = prompt_text if isinstance(value[0], str) else _ids
        return [check(f"prompt[{i}]", item) for i, item in enumerate(value)]
    return [prompt_text("prompt", value)]


def _ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i <= MAX_COUNT for i in value):
        raise bad(name, "want a string or an array of token ids")
    return list(value)
