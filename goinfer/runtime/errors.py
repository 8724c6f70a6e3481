"""Typed errors of the runtime; one class a cause, one line a message."""

from goinfer.bundle_format.errors import GoinferError


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
