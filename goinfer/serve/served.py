"""The model a server serves, as the routes see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from goinfer.runtime.checks import told
from goinfer.runtime.interfaces import Engine, Vocabulary
from goinfer.runtime.prompt import encode_prompt
from goinfer.serve.errors import ApiError


@dataclass(frozen=True)
class ServedModel:
    """`encode_chat` renders messages through the bundle's own template; None where the bundle has none.

    `slots` requests can run at once. `created` is only what /v1/models reports.
    """

    name: str
    engine: Engine
    vocabulary: Vocabulary
    slots: int
    encode_chat: Callable[[list[dict[str, Any]]], list[int]] | None
    created: int = 0

    def check_name(self, asked: str | None) -> None:
        """Raise ApiError 404 for a request that names another model; one that names none means this one."""
        if asked is not None and asked != self.name:
            message = f"model: there is no {told(asked)} here; this server has {self.name}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def chat_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer."""
        if self.encode_chat is None:
            raise ApiError(400, "this bundle has no chat template: use /v1/completions")
        return self.encode_chat(messages)

    def prompt_ids(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a plain prompt."""
        if not isinstance(prompt, str):
            return prompt
        if self.vocabulary.tokenizer is None:
            raise ApiError(400, "prompt: this bundle has no tokenizer: send token ids", param="prompt")
        return encode_prompt(self.vocabulary.tokenizer, prompt)
