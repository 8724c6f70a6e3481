"""Checked access to a request's JSON: every field is read, known to be harmless, or refused by name."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from goinfer.serve.errors import ApiError

# fields that do not change what is generated
IGNORED = frozenset(
    {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"}
)
# fields this server has only one setting of; null is always accepted
ONLY: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def bad(name: str, message: str) -> ApiError:
    """A 400 about one field."""
    return ApiError(400, f"{name}: {message}", param=name)


class Fields:
    """The fields of one request; `finish` refuses what nobody asked for. A null counts as absent."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}

    def take(self, name: str, default: Any = None) -> Any:
        """The raw value, now accounted for."""
        return self._left.pop(name, default)

    def number(self, name: str, default: float) -> float:
        """A finite JSON number."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise bad(name, "want a number")
        return float(value)

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A JSON integer in [low, high]."""
        value = self.take(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise bad(name, f"want an integer from {low} to {high}")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise bad(name, "want true or false")
        return value

    def finish(self) -> None:
        """Refuse every field that is unknown, or known and asks for something this server does not do."""
        for name, value in self._left.items():
            if name in IGNORED:
                continue
            if name not in ONLY:
                raise bad(name, "unknown field")
            if not any(_same(value, allowed) for allowed in ONLY[name]):
                raise bad(name, _not_supported(ONLY[name]))


def _same(value: Any, allowed: Any) -> bool:
    return type(value) is type(allowed) and bool(value == allowed)


def _not_supported(allowed: tuple[Any, ...]) -> str:
    if not allowed:
        return "not supported by this server"
    return f"not supported by this server, except {' or '.join(map(repr, allowed))}"


def text(value: Any, name: str) -> str:
    """A string that is text: one with half a surrogate pair cannot be encoded."""
    if not isinstance(value, str):
        raise bad(name, "want a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad(name, "holds half a surrogate pair") from None
    return value


def list_of(value: Any, name: str, item: Callable[[Any, str], Any]) -> list[Any]:
    """A JSON array, each element checked by `item`."""
    if not isinstance(value, list):
        raise bad(name, "want an array")
    return [item(element, f"{name}[{i}]") for i, element in enumerate(value)]
