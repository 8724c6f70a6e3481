"""Binds an address and serves until a signal."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.serve.app import Access, Limits, create_app
from goinfer.serve.guard import default_hosts, is_loopback
from goinfer.serve.served import ServedModel

KEY_VARIABLE = "GOINFER_API_KEY"


class BindError(GoinferError):
    """The address cannot be listened on."""


@dataclass(frozen=True)
class Address:
    """Where to listen and who may call. A key given here wins over the environment's."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()

    def access(self) -> Access:
        """Refuses an address other machines can reach when there is no key."""
        key = self.api_key if self.api_key is not None else os.environ.get(KEY_VARIABLE)
        if key is not None and not (key.strip() == key and key.isascii() and key):
            raise UsageError("api key: must be ASCII text without spaces around it, and not empty")
        if key is None and not is_loopback(self.host):
            raise UsageError(f"host {self.host}: other machines could use this server: set --api-key or {KEY_VARIABLE}")
        hosts = default_hosts(self.host)
        if self.allow_hosts:
            hosts = (hosts or set()) | set(self.allow_hosts)
        return Access(key, None if hosts is None else frozenset(hosts), frozenset(self.allow_origins))


def bind(address: Address) -> socket.socket:
    """A socket that listens on the address; port 0 takes any free one. Clients wait until `serve` answers."""
    if not 0 <= address.port <= 65535:
        raise UsageError(f"port {address.port}: not between 0 and 65535")
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(256)
    except OSError as error:
        reason = error.strerror or error
        raise BindError(f"cannot listen on {address.host} port {address.port}: {reason}") from None
    return sock


def serve(
    model: ServedModel, access: Access, sock: socket.socket, ready: Callable[[str], None], limits: Limits
) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM; `ready` is told the URL once requests are answered."""
    app = create_app(model, access, limits)
    config = uvicorn.Config(
        app, http="h11", loop="asyncio", ws="none", lifespan="on", log_level="warning",
        access_log=False, server_header=False, timeout_graceful_shutdown=3,
    )  # fmt: skip
    _Server(config, app.state.scheduler.request_stop, lambda: ready(_url(sock))).run(sockets=[sock])


class _Server(uvicorn.Server):
    """Ends running answers on a signal, instead of waiting for them; says when it is up."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None], on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal()
        super().handle_exit(sig, frame)


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
