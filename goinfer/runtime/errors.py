"""Typed errors of the runtime; one class a cause, one line a message."""

from collections.abc import Mapping

from goinfer.bundle_format.errors import GoinferError, UsageError


class ContextError(GoinferError):
    """More positions are asked for than the context holds."""

    def __init__(self, limit: int, request: int, what: str = "the prompt") -> None:
        super().__init__(
            f"context: {what} needs {request} tokens, the limit is {limit}: "
            "shorten it or load the model with a larger context"
        )
        self.limit = limit
        self.request = request


class LogitsError(GoinferError):
    """The model produced logits no token can be chosen from (NaN, +inf, or nothing finite)."""


class ClosedError(GoinferError):
    """A closed model was asked to run."""


class ForkedError(GoinferError):
    """A model was asked to run in a fork of the process that loaded it, where its threads do not exist."""


class ArgumentError(UsageError):
    """An argument, or a field of a request, has a value that it cannot have."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem

    def renamed(self, names: Mapping[str, str]) -> "ArgumentError":
        """The same problem under the name that the caller of a front end knows; `stop[1]` is renamed as `stop`."""
        stem, bracket, rest = self.name.partition("[")
        return ArgumentError(names.get(stem, stem) + bracket + rest, self.problem)
