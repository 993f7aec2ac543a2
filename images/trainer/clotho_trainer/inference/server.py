"""The inference port: SGLang's and OpenAI's routes over whichever engine serves the run."""

import asyncio
import hmac
import io
import logging
import tarfile
import tempfile
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_trainer.inference import answers
from clotho_trainer.inference.core.engine import Completion, Engine, EngineBusyError, Request, Sampling
from clotho_trainer.inference.requests import (
    BadRequestError,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    Prompt,
    generate_prompt,
    is_several,
    openai_sampling,
    prompts_of,
    sglang_sampling,
)

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body")
_OPEN = frozenset({"/", "/health"})
_LARGEST_BODY = 256 * 1024**2
_OPENAI_TOKENS = 16  # what OpenAI gives a completion that names no limit


@dataclass(frozen=True)
class Service:
    """What the routes need once the model is there."""

    engine: Engine
    tokenizer: Any
    model: str
    context: int
    vocabulary: int
    temperature: float
    count_tokens: Callable[[int], None] = lambda _: None


class InferenceServer:
    """Listens from the start; answers 503 until a service is put in."""

    def __init__(self, token: str) -> None:
        self.service: Service | None = None
        self._token = token.encode()
        self._archive: bytes | None = None

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=_LARGEST_BODY)
        app.router.add_get("/", self._root)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/tokenizer.tar", self._tokenizer)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in _OPEN and not _has_token(request, self._token):
            return problem(401, "the run's token is missing or wrong")
        try:
            return await handler(request)
        except BadRequestError as error:
            return problem(400, str(error))
        except EngineBusyError as error:
            response = problem(503, str(error))
            response.headers["Retry-After"] = "1"
            return response

    def _serving(self) -> Service:
        if self.service is None:
            raise EngineBusyError("the model is still loading")
        return self.service

    async def _root(self, _: web.Request) -> web.Response:
        return web.json_response({"message": "Clotho inference"})

    async def _health(self, _: web.Request) -> web.Response:
        trouble = self._serving().engine.problem()
        if trouble:
            raise EngineBusyError(trouble)
        return web.json_response({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        service = self._serving()
        return web.json_response(answers.model_list(service.model, service.context))

    async def _tokenizer(self, _: web.Request) -> web.Response:
        if self._archive is None:
            self._archive = await asyncio.to_thread(archive, self._serving().tokenizer)
        return web.Response(body=self._archive, content_type="application/x-tar")

    async def _generate(self, request: web.Request) -> web.Response:
        service, body = self._serving(), await _read(request, GenerateRequest)
        prompt = generate_prompt(body)
        sampling = sglang_sampling(body.sampling_params, service.temperature, service.context)
        samples = await _sample_all(service, _token_lists(service, prompt), sampling, body.sampling_params.n)
        results = [
            answers.sglang(completion, len(tokens), body.return_logprob)
            for tokens, completions in samples
            for completion in completions
        ]
        single = len(results) == 1 and not is_several(prompt)
        return _answer(results[0] if single else results, samples)

    async def _completions(self, request: web.Request) -> web.Response:
        service, body = self._serving(), await _read(request, CompletionRequest)
        if body.echo:
            raise BadRequestError("echo is not supported")
        sampling = openai_sampling(body, service.temperature, _OPENAI_TOKENS)
        samples = await _sample_all(service, _token_lists(service, body.prompt), sampling, body.n or 1)
        with_logprobs = body.logprobs is not None and body.logprobs is not False
        return _answer(answers.text_completion(service.model, samples, _decoder(service), with_logprobs), samples)

    async def _chat(self, request: web.Request) -> web.Response:
        service, body = self._serving(), await _read(request, ChatRequest)
        prompt = _chat_tokens(service, body)
        sampling = openai_sampling(body, service.temperature, service.context)
        samples = await _sample_all(service, [prompt], sampling, body.n or 1)
        answer = answers.chat_completion(service.model, prompt, samples[0][1], _decoder(service), bool(body.logprobs))
        return _answer(answer, samples)


def problem(status: int, sentence: str) -> web.Response:
    """Both shapes that clients look for."""
    return web.json_response(
        {"detail": sentence, "error": {"message": sentence, "type": "invalid_request_error", "code": status}},
        status=status,
    )


def archive(tokenizer: Any) -> bytes:
    """The tokenizer's files: environments have no way out to fetch them elsewhere."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=buffer, mode="w") as tar:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).rglob("*")):
            tar.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return buffer.getvalue()


def _has_token(request: web.Request, token: bytes) -> bool:
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return hmac.compare_digest(value.strip().encode(), token)
    if kind.lower() == "basic":
        try:
            password = b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return False
        return hmac.compare_digest(password, token)
    return False


async def _read(request: web.Request, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as error:
        raise BadRequestError(str(error)) from error


async def _sample_all(
    service: Service, prompts: list[list[int]], sampling: Sampling, n: int
) -> list[tuple[list[int], list[Completion]]]:
    async def sample(prompt: list[int]) -> tuple[list[int], list[Completion]]:
        try:
            completions = await service.engine.generate(Request(tuple(prompt), sampling, n))
        except ValueError as error:
            raise BadRequestError(str(error)) from error
        service.count_tokens(sum(len(completion.tokens) for completion in completions))
        return prompt, completions

    if len(prompts) == 1:
        return [await sample(prompts[0])]
    return list(await asyncio.gather(*(sample(prompt) for prompt in prompts)))


def _token_lists(service: Service, prompt: Prompt) -> list[list[int]]:
    lists = []
    for entry in prompts_of(prompt):
        tokens = service.tokenizer(entry)["input_ids"] if isinstance(entry, str) else entry
        if not tokens:
            raise BadRequestError("the prompt is empty")
        if min(tokens) < 0 or max(tokens) >= service.vocabulary:
            raise BadRequestError(f"a token id of the prompt is outside 0..{service.vocabulary - 1}")
        lists.append(list(tokens))
    return lists


def _chat_tokens(service: Service, body: ChatRequest) -> list[int]:
    if not body.messages:
        raise BadRequestError("messages is empty")
    if service.tokenizer.chat_template is None:
        raise BadRequestError(
            f"the tokenizer of {service.model} has no chat template; use /v1/completions or /generate, "
            "or a model made for chat"
        )
    try:
        text = service.tokenizer.apply_chat_template(
            body.messages,
            tools=body.tools,
            add_generation_prompt=True,
            tokenize=False,
            **(body.chat_template_kwargs or {}),
        )
    except Exception as error:  # templates are programs: they raise what they like
        raise BadRequestError(f"the chat template refuses these messages: {error}") from error
    tokens: list[int] = service.tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens


def _decoder(service: Service) -> answers.Decode:
    return lambda token: _piece(service.tokenizer, token)


@lru_cache(maxsize=300_000)  # a vocabulary; decoding token by token would hold the decoder up
def _piece(tokenizer: Any, token: int) -> str:
    return str(tokenizer.decode([token]))


def _answer(body: object, samples: list[tuple[list[int], list[Completion]]]) -> web.Response:
    oldest = min(completion.version for _, completions in samples for completion in completions)
    return web.Response(
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers={POLICY_VERSION_HEADER: str(oldest)},
    )
