"""The inference port: SGLang's and OpenAI's routes over whichever engine serves the run."""

import asyncio
import io
import tarfile
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from clotho_contract import request_body, untrusted
from clotho_contract.access import is_accepted, presented_token
from clotho_contract.memory_budget import Budget, Reservation
from clotho_contract.request_body import BodyTooLargeError, BodyTooSlowError
from clotho_trainer.inference import answers, openai_routes, sglang_routes
from clotho_trainer.inference.core.engine import EngineBusyError
from clotho_trainer.inference.requests import BadRequestError, ChatRequest, CompletionRequest, GenerateRequest
from clotho_trainer.inference.responses import problem
from clotho_trainer.inference.service import Service

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body")
Route = Callable[[web.Request, Service, Body], Awaitable[web.StreamResponse]]
_OPEN = frozenset({"/", "/health"})
_LARGEST_BODY = 256 * 1024**2
_BODIES_IN_MEMORY = 512 * 1024**2  # of all requests that are being served or wait for it


class InferenceServer:
    """Listens from the start; answers 503 until a service is put in, and while `unready` has a reason for it.

    Any of `tokens` opens it.
    """

    def __init__(self, *tokens: str) -> None:
        self.service: Service | None = None
        self.unready: Callable[[], str | None] = lambda: None
        self._tokens = tokens
        self._archive: bytes | None = None
        self._memory = Budget(_BODIES_IN_MEMORY)

    @property
    def is_open(self) -> bool:
        """Whether there is anything that it accepts."""
        return bool(self._tokens)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._root)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/tokenizer.tar", self._tokenizer)
        app.router.add_post("/generate", self._route(GenerateRequest, sglang_routes.generate))
        app.router.add_post("/v1/completions", self._route(CompletionRequest, openai_routes.completions))
        app.router.add_post("/v1/chat/completions", self._route(ChatRequest, openai_routes.chat_completions))
        return app

    def _accepts(self, request: web.Request) -> bool:
        return is_accepted(presented_token(request.headers.get("Authorization")), self._tokens)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in _OPEN and not self._accepts(request):
            return problem(401, "the run's token is missing or wrong")
        try:
            return await handler(request)
        except BadRequestError as error:
            return problem(error.status, str(error))
        except EngineBusyError as error:
            response = problem(503, str(error))
            response.headers["Retry-After"] = "1"
            return response

    def _serving(self) -> Service:
        if self.service is None:
            raise EngineBusyError("the model is still loading")
        if reason := self.unready():
            raise EngineBusyError(reason)
        return self.service

    def _route(self, kind: type[Body], route: Route[Body]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            service = self._serving()
            async with self._memory.reservation() as held:
                body = await _read(request, kind, held)
                try:
                    return await route(request, service, body)
                except BadRequestError:
                    raise
                except ValueError as error:  # of an engine that cannot do what was asked
                    raise BadRequestError(str(error)) from error

        return handle

    async def _root(self, _: web.Request) -> web.Response:
        return web.json_response({"message": "Clotho inference"})

    async def _health(self, _: web.Request) -> web.Response:
        trouble = self._serving().engine.problem()
        if trouble:
            raise EngineBusyError(trouble)
        return web.json_response({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        service = self._serving()
        return web.json_response(answers.model_list(service.model, service.context, service.created))

    async def _tokenizer(self, _: web.Request) -> web.Response:
        if self._archive is None:
            self._archive = await asyncio.to_thread(archive, self._serving().tokenizer)
        return web.Response(body=self._archive, content_type="application/x-tar")


def archive(tokenizer: Any) -> bytes:
    """The tokenizer's files: environments have no egress to fetch them elsewhere."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=buffer, mode="w") as tar:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).rglob("*")):
            tar.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return buffer.getvalue()


async def _read(request: web.Request, kind: type[Body], held: Reservation) -> Body:
    try:
        body = await request_body.read(request.content, request.content_length, _LARGEST_BODY, held)
        return untrusted.decode(body, kind)
    except BodyTooLargeError as error:
        raise BadRequestError(str(error), 413) from error
    except BodyTooSlowError as error:
        raise BadRequestError(str(error), 408) from error
    except msgspec.MsgspecError as error:
        raise BadRequestError(str(error)) from error
