"""HTTP pieces the routes share: bounded JSON bodies, event streams, and noticing that the client has left."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from goinfer.serve.errors import ApiError

T = TypeVar("T")
_KEEP_ALIVE_SECONDS = 15.0
_BODY_SECONDS = 60.0
_UTF_8 = ("utf-8", "utf8", "us-ascii")  # ASCII is UTF-8 too


async def read_json(request: Request, limit: int) -> Any:
    """The parsed body; refuses other content types (a cross-site form can send those) and more than `limit`."""
    _check_type(request.headers)
    too_large = ApiError(413, f"the body is larger than {limit} bytes")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, "the body did not come in time") from None
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None


def _check_type(headers: Headers) -> None:
    """The body is JSON in UTF-8, as it is."""
    kind, *options = (part.strip().lower() for part in headers.get("content-type", "").split(";"))
    if kind != "application/json":
        raise ApiError(415, "the Content-Type must be application/json")
    for option in options:
        name, _, value = option.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in _UTF_8:
            raise ApiError(415, "the charset of the body must be utf-8")
    codings = (coding.strip().lower() for value in headers.getlist("content-encoding") for coding in value.split(","))
    if any(coding not in ("", "identity") for coding in codings):
        raise ApiError(415, "the body must not be compressed: send it without Content-Encoding")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def event(data: Any) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode(errors="replace") + b"\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, with ClientDisconnect raised, when the client leaves first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect()
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(Response):
    """Sends what `events` yields, as it comes; `closed` is called at the end, or at once when the client leaves.

    While nothing comes a comment is sent now and then, so that proxies keep the connection.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], closed: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._closed = closed  # `events` itself may never have been started

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or stop where the client left."""
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientDisconnect:
            return
        finally:
            self._closed()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            following = asyncio.ensure_future(anext(self._events, b""))
            while True:
                done, _ = await asyncio.wait({following}, timeout=_KEEP_ALIVE_SECONDS)
                if not done:
                    await send({"type": "http.response.body", "body": b": waiting\n\n", "more_body": True})
                    continue
                if not (body := following.result()):
                    break
                await send({"type": "http.response.body", "body": body, "more_body": True})
                following = asyncio.ensure_future(anext(self._events, b""))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
