"""The messages of a conversation, checked: the same for `Model.chat` and for a request to the server."""

from collections.abc import Mapping, Sequence
from typing import Any

from goinfer.runtime import checks
from goinfer.runtime.errors import ArgumentError

ROLES = ("system", "developer", "user", "assistant")
# what a client sends back from an earlier answer of ours, empty
_EMPTY = ("tool_calls", "annotations", "refusal", "audio", "function_call")
# what some templates read and the server does not offer
_TOOL_FIELDS = ("tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking")


def check_messages(value: Any, tools: bool = False) -> list[dict[str, Any]]:
    """Messages with a role and a text as content; a developer is a system to templates. A None counts as absent.

    tools: also take the role "tool", and what templates read about tools and reasoning, as it is. Raises ArgumentError
    naming the message and the field.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise ArgumentError("messages", f"want a list of messages, not {checks.told(value)}")
    if not value:
        raise ArgumentError("messages", "want at least one message")
    return [_message(message, f"messages[{i}]", tools) for i, message in enumerate(value)]


def _message(value: Any, name: str, tools: bool) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ArgumentError(name, f"want an object with role and content, not {checks.told(value)}")
    left = {key: item for key, item in value.items() if item is not None}
    role, roles = left.pop("role", None), (*ROLES, "tool") if tools else ROLES
    if role not in roles:
        raise ArgumentError(f"{name}.role", f"want one of {', '.join(roles)}, not {checks.told(role)}")
    extra = {key: left.pop(key) for key in _TOOL_FIELDS if tools and key in left}
    content = left.pop("content", "" if extra.get("tool_calls") else None)
    message = {"role": "system" if role == "developer" else role, "content": _content(content, f"{name}.content")}
    if "name" in left:
        message["name"] = checks.text(f"{name}.name", left.pop("name"))
    for key, item in left.items():
        if key not in _EMPTY:
            raise ArgumentError(f"{name}.{key}", "unknown field")
        if item:
            raise ArgumentError(f"{name}.{key}", "not supported")
    return message | extra


def _content(value: Any, name: str) -> str:
    if isinstance(value, list | tuple):
        return "".join(_text_part(part, f"{name}[{i}]") for i, part in enumerate(value))
    return checks.text(name, value)


def _text_part(value: Any, name: str) -> str:
    if not isinstance(value, Mapping) or value.get("type") != "text" or set(value) - {"type", "text"}:
        raise ArgumentError(name, 'only parts {"type": "text", "text": ...} are supported')
    return checks.text(f"{name}.text", value.get("text"))
