"""Routes of the server. Each request is parsed and tokenised off the event loop, then handed to the scheduler."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from goinfer.runtime.generate import Generation, Piece
from goinfer.runtime.sampler import SamplingParams, fresh_seed
from goinfer.serve.errors import ApiError, api_error
from goinfer.serve.guard import Guard
from goinfer.serve.http import EventStream, event, read_json, unless_disconnected
from goinfer.serve.jobs import Jobs
from goinfer.serve.openai_replies import ChatShape, CompletionShape, Reply, Shape, usage
from goinfer.serve.openai_requests import Delivery, parse_chat, parse_completion
from goinfer.serve.scheduler import BusyError, Scheduler, StoppedError
from goinfer.serve.served import ServedModel

log = logging.getLogger("goinfer.serve")

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """`body_bytes` of one request, `waiting` requests beyond those that run."""

    body_bytes: int = 4 << 20
    waiting: int = 64


@dataclass(frozen=True)
class Access:
    """Who may call: see guard.Guard."""

    key: str | None = None
    hosts: frozenset[str] | None = frozenset({"localhost", "127.0.0.1", "::1"})
    origins: frozenset[str] = frozenset()


@dataclass
class Ask:
    """A request ready to run: its prompts as ids, how to sample, how to answer."""

    prompts: list[list[int]]
    params: SamplingParams
    delivery: Delivery
    shape: type[ChatShape] | type[CompletionShape]


class Api:
    """What the routes share."""

    def __init__(self, model: ServedModel, scheduler: Scheduler, limits: Limits) -> None:
        self.model = model
        self.scheduler = scheduler
        self.limits = limits

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await read_json(request, self.limits.body_bytes)

        def prepare() -> Ask:
            asked = parse_chat(body)
            self.model.check_name(asked.model)
            ids = self.model.chat_ids(asked.messages)
            return Ask([ids], asked.params, asked.delivery, ChatShape)

        return await self._answer(request, prepare)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await read_json(request, self.limits.body_bytes)

        def prepare() -> Ask:
            asked = parse_completion(body)
            self.model.check_name(asked.model)
            ids = [self.model.prompt_ids(prompt) for prompt in asked.prompts]
            return Ask(ids, asked.params, asked.delivery, CompletionShape)

        return await self._answer(request, prepare)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        self.model.check_name(request.path_params["name"])
        return JSONResponse(self._card())

    async def health(self, request: Request) -> Response:
        """GET /health: tells load, and nothing about the model; needs no key."""
        active, waiting = self.scheduler.load
        return JSONResponse({"status": "ok", "active": active, "waiting": waiting})

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.model.name,
            "object": "model",
            "created": self.model.created,
            "owned_by": "goinfer",
            "context_length": self.model.engine.context,
        }

    async def _answer(self, request: Request, prepare: Callable[[], Ask]) -> Response:
        def ready() -> tuple[Ask, list[Generation]]:
            ask = prepare()
            if ask.params.seed is None:
                ask.params = replace(ask.params, seed=fresh_seed())
            vocabulary, context = self.model.vocabulary, self.model.engine.context
            continues = ask.shape is CompletionShape
            return ask, [Generation(p, ask.params, vocabulary, context, continues=continues) for p in ask.prompts]

        ask, generations = await asyncio.to_thread(ready)
        reply = Reply(self.model.name, ask.shape, generations[0].seed)
        jobs = Jobs(self.scheduler, generations)
        if ask.delivery.stream:
            return EventStream(self._stream(jobs, ask, reply), jobs.cancel)
        try:
            return JSONResponse(await unless_disconnected(request.receive, self._whole(jobs, ask, reply)))
        finally:
            jobs.cancel()

    def _shapes(self, ask: Ask) -> list[Shape]:
        return [ask.shape(self.model.vocabulary.tokenizer) for _ in ask.prompts]

    async def _whole(self, jobs: Jobs, ask: Ask, reply: Reply) -> dict[str, Any]:
        collected: list[list[Piece]] = [[] for _ in ask.prompts]
        async for index, pieces in jobs.pieces():
            collected[index] += pieces
        choices = []
        for index, (shape, pieces) in enumerate(zip(self._shapes(ask), collected, strict=True)):
            share = shape.full(_text(pieces), pieces, ask.params.logprobs is not None)
            choices.append({"index": index, **share, "finish_reason": pieces[-1].finish_reason})
        return reply.whole(choices, usage(jobs.generations))

    async def _stream(self, jobs: Jobs, ask: Ask, reply: Reply) -> AsyncIterator[bytes]:
        """Events of one answer; an error after the first event becomes the last event."""
        include, logprobs = ask.delivery.include_usage, ask.params.logprobs is not None
        shapes = self._shapes(ask)
        try:
            for index, shape in enumerate(shapes):
                if (opening := shape.opening()) is not None:
                    yield event(reply.chunk(index, opening, None, include))
            async for index, pieces in jobs.pieces():
                shape, text = shapes[index], _text(pieces)
                if text or (logprobs and any(piece.shown for piece in pieces)):
                    yield event(reply.chunk(index, shape.part(text, pieces, logprobs), None, include))
                if pieces[-1].finish_reason is not None:
                    yield event(reply.chunk(index, shape.closing(), pieces[-1].finish_reason, include))
        except Exception as error:
            yield event(_reported(error).body)
            return
        if include:
            yield event(reply.usage_chunk(usage(jobs.generations)))
        yield event("[DONE]")


def _text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _reported(error: Exception) -> ApiError:
    """What the client is told; what it is not told goes to the log."""
    if isinstance(error, BusyError):
        return ApiError(429, str(error), code="busy")
    if isinstance(error, StoppedError):
        return ApiError(503, str(error), code="stopping")
    told = api_error(error)
    if told.status >= 500:
        log.error("%s: %s", type(error).__name__, error)
    return told


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    if isinstance(error, HTTPException):
        known = {404: "no such route", 405: "the method is not allowed here"}
        error = ApiError(error.status_code, known.get(error.status_code, str(error.detail)))
    told = _reported(error)
    return JSONResponse(told.body, told.status, {"Retry-After": "1"} if told.status == 429 else None)


def _answered(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with every exception turned into a reply."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            return await _on_error(request, error)

    return answered


def create_app(model: ServedModel, access: Access | None = None, limits: Limits | None = None) -> Starlette:
    """The ASGI application; its lifespan runs the scheduler's thread (`app.state.scheduler`)."""
    access, limits = access or Access(), limits or Limits()
    scheduler = Scheduler(model.engine, model.slots, limits.waiting)
    api = Api(model, scheduler, limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        scheduler.start()
        try:
            yield
        finally:
            await asyncio.to_thread(scheduler.stop)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _answered(api.chat), methods=["POST"]),
            Route("/v1/completions", _answered(api.completions), methods=["POST"]),
            Route("/v1/models", _answered(api.models), methods=["GET"]),
            Route("/v1/models/{name:path}", _answered(api.one_model), methods=["GET"]),
            Route("/health", _answered(api.health), methods=["GET"]),
        ],
        middleware=[Middleware(Guard, access.key, access.hosts, access.origins)],
        exception_handlers={HTTPException: _on_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.scheduler = scheduler
    return app
