"""A live server over the fake engine, and clients for it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import openai
import pytest
import uvicorn

from goinfer.serve.app import Access, Limits, create_app
from goinfer.serve.scheduler import Scheduler
from goinfer.serve.served import ServedModel
from goinfer.serve.server import Address, bind
from tests.runtime_text.text_fakes import BOS, TURN, FakeEngine, vocabulary


def encode_chat(messages: list[dict[str, Any]]) -> list[int]:
    ids = [BOS]
    for message in messages:
        ids += [TURN, *f"{message['role'][0]}:{message['content']}".encode()]
    return [*ids, TURN]


def open_slots(engine: Any) -> int:
    """Slots in use, of the fake engine or of the real one."""
    return engine.open_slots if isinstance(engine, FakeEngine) else engine.cache.slots - len(engine.cache._free)


@dataclass
class Live:
    url: str
    engine: Any
    scheduler: Scheduler

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def wait_idle(self, seconds: float = 5.0) -> None:
        """Until no job holds a slot."""
        deadline = time.monotonic() + seconds
        while self.scheduler.load != (0, 0) or open_slots(self.engine):
            assert time.monotonic() < deadline, (self.scheduler.load, open_slots(self.engine))
            time.sleep(0.005)


Start = Callable[..., Live]


@contextmanager
def running(engine: Any, access: Access, limits: Limits, **changes: Any) -> Iterator[Live]:
    words = changes.pop("words", None)
    model = ServedModel("fake", engine, vocabulary(words), slots=4, encode_chat=encode_chat)
    app = create_app(replace(model, **changes), access, limits)
    sock = bind(Address(port=0))
    config = uvicorn.Config(app, http="h11", log_level="warning", lifespan="on", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield Live(f"http://127.0.0.1:{sock.getsockname()[1]}", engine, app.state.scheduler)
    finally:
        app.state.scheduler.request_stop()  # ends what a failed test left running
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        sock.close()
        assert open_slots(engine) == 0


@pytest.fixture
def start() -> Iterator[Start]:
    """start(engine, access=..., limits=..., **ServedModel fields) -> Live; stopped at the end of the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def begin(
            engine: FakeEngine | None = None, access: Access | None = None, limits: Limits | None = None, **changes: Any
        ) -> Live:
            return stack.enter_context(
                running(engine or FakeEngine(), access or Access(), limits or Limits(), **changes)
            )

        yield begin
