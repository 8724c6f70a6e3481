"""Errors as the OpenAI API words them; none tells a client about the server's file system."""

import re
from typing import Any

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.runtime.chat_errors import TemplateError
from goinfer.runtime.errors import ArgumentError, ContextError

# an absolute path of at least two parts, unless it is inside a word or a URL
_ABSOLUTE_PATH = re.compile(r"(?<![\w/:.])(?:/[^\s/:'\"]+)+/([^\s/:'\"]+)")


class ApiError(GoinferError):
    """A reply other than success: HTTP status and the fields of an OpenAI error object."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the reply."""
        return {
            "error": {
                "message": _sendable(_ABSOLUTE_PATH.sub(r"\1", str(self))),
                "type": _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error"),
                "param": None if self.param is None else _sendable(self.param),
                "code": self.code,
            }
        }


def _sendable(text: str) -> str:
    """Text of bounded length that has a UTF-8 form: the name of an unknown field may be anything."""
    return text[:_LONGEST].encode("utf-8", "backslashreplace").decode()


_LONGEST = 1000

_FIELDS = {"max_new_tokens": "max_tokens"}
"""Arguments of ours whose field in a request is called otherwise."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def api_error(error: Exception) -> ApiError:
    """What a client is told about `error`; anything not raised on purpose stays unexplained."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextError):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, ArgumentError):
        told = error.renamed(_FIELDS)
        return ApiError(400, str(told), param=told.name)
    if isinstance(error, UsageError | TemplateError):  # the template refuses these messages
        return ApiError(400, str(error))
    if isinstance(error, GoinferError):
        return ApiError(500, str(error))
    return ApiError(500, "internal error: see the server's log")
