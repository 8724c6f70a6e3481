"""What every request must pass before a route sees it: Host, Origin, API key.

A browser can be made to send requests to a local server, so being on loopback alone protects nothing: the Host
header must name this server (else another site's name was rebound to it) and a foreign Origin is refused. With a
key, every path needs it except those in PUBLIC.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from goinfer.serve.errors import ApiError

PUBLIC = frozenset({"/health"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether an address to bind is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware. `hosts` None accepts any Host header, which is safe only together with a key.

    `origins` are the origins of web pages that may call this server, as "https://name:port".
    """

    def __init__(self, app: ASGIApp, key: str | None, hosts: Iterable[str] | None, origins: Iterable[str] = ()) -> None:
        self._app = app
        self._key = key.encode() if key is not None else None
        self._hosts = None if hosts is None else {host.lower().strip("[]") for host in hosts}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what must not pass; hand the rest on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            allowed = self._check_origin(headers)
            if scope["method"] == "OPTIONS" and allowed:
                await _preflight(allowed)(scope, receive, send)
                return
            self._check_key(scope["path"], headers)
        except ApiError as error:
            extra = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
            await JSONResponse(error.body, error.status, extra)(scope, receive, send)
            return
        await self._app(scope, receive, _with_cors(send, allowed) if allowed else send)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise ApiError(400, "want exactly one Host header")
        if self._hosts is not None and host_name(hosts[0]) not in self._hosts:
            raise ApiError(403, "the Host header does not name this server: see --allow-host", code="host")

    def _check_origin(self, headers: Headers) -> str | None:
        """The origin to allow in the reply, if it is one of another site that the owner listed."""
        origin = headers.get("origin")
        if origin is None or origin == f"http://{headers['host']}":
            return None
        if origin not in self._origins:
            raise ApiError(403, "requests from this origin are refused: see --allow-origin", code="origin")
        return origin

    def _check_key(self, path: str, headers: Headers) -> None:
        if self._key is None or path in PUBLIC:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        if not hmac.compare_digest(given.strip().encode(), self._key):
            raise ApiError(401, "wrong or missing API key", code="invalid_api_key")


def default_hosts(bound: str) -> set[str] | None:
    """Host names to accept for a server bound to this address; None, any, where only the key protects it."""
    return {*_LOOPBACK_NAMES, bound.lower()} if is_loopback(bound) else None


def host_name(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _preflight(origin: str) -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": "authorization, content-type, x-api-key",
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        },
    )


def _with_cors(send: Send, origin: str) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(b"access-control-allow-origin", origin.encode()), (b"vary", b"Origin")]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return wrapped
