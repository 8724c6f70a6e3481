"""Checked access to a request's JSON: every field is read, known to be harmless, or refused by name."""

from collections.abc import Mapping
from typing import Any

from goinfer.runtime import checks
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

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A JSON integer in [low, high]."""
        value = self.take(name, default)
        return None if value is None else checks.whole(name, value, low, high)

    def boolean(self, name: str, default: bool = False) -> bool:
        """true or false."""
        return checks.flag(name, self.take(name, default))

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
