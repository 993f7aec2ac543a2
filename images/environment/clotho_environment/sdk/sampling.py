"""Samples from the policy under training: text, and the tokens and log-probabilities that training needs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec

from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_contract.retry import TransientError, reason_of, retry_after, retrying
from clotho_environment.sdk.bodies import read_answer
from clotho_environment.sdk.completion import AnswerError, Completion, Message, read_generate, read_openai
from clotho_environment.sdk.conversation import Conversation
from clotho_environment.sdk.routing import Affinity, Routes, Server

Reader = Callable[[bytes, int | None], list[Completion]]
Ask = Callable[[int], Awaitable[list[Completion]]]


class InferenceError(Exception):
    """The request is wrong: sending it again cannot help."""


class InferenceUnauthorizedError(InferenceError):
    """The inference server rejects the token."""


class InferenceUnavailableError(Exception):
    """The inference server does not answer at the moment; the runner tries again later."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Used where a call does not override them; taken from the environment's config."""

    n: int = 1
    max_tokens: int = 512
    temperature: float | None = None


class SamplingClient:
    """Every method takes `n` samples (the environment's group size by default).

    `max_tokens`, `temperature`, `stop` and any other sampling parameter of the server can be given by name. Several
    base URLs are those of one policy: requests are spread over them.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str | Sequence[str],
        *,
        model: str,
        defaults: Defaults | None = None,
        want_tokens: bool = True,
        limit_seconds: float = 30.0,
    ) -> None:
        self._session = session
        self._routes = Routes.to([base_url] if isinstance(base_url, str) else base_url)
        self._model = model
        self._defaults = defaults or Defaults()
        self._want_tokens = want_tokens
        self._limit_seconds = limit_seconds

    def use_servers(self, base_urls: Sequence[str]) -> None:
        """From now on."""
        self._routes.update(base_urls)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int | None = None,
        tools: Sequence[Any] | None = None,
        affinity: Affinity | None = None,
        **sampling: Any,
    ) -> list[Completion]:
        """Sample replies to a conversation. Its further turns with the same `affinity` go to the same server."""
        request = self._openai_request(sampling) | {"messages": list(messages)}
        if self._want_tokens:
            request["logprobs"] = True
        if tools:
            request["tools"] = list(tools)
        prompt = next((str(message.get("content") or "") for message in reversed(messages)), "")
        return await self._sample("/v1/chat/completions", request, prompt, n, affinity)

    async def complete(self, prompt: str, *, n: int | None = None, **sampling: Any) -> list[Completion]:
        """Sample continuations of a plain text."""
        request = self._openai_request(sampling) | {"prompt": prompt}
        if self._want_tokens:
            request["logprobs"] = 0  # the sampled token's alone
        return await self._sample("/v1/completions", request, prompt, n)

    async def generate(self, tokens: Sequence[int], *, n: int | None = None, **sampling: Any) -> list[Completion]:
        """Sample continuations of token ids, for authors who tokenize themselves."""
        prompt = tuple(tokens)
        parameters = self._with_defaults(sampling)
        parameters["max_new_tokens"] = parameters.pop("max_tokens")

        def read(body: bytes, version: int | None) -> list[Completion]:
            return read_generate(body, prompt, version)

        async def ask(count: int) -> list[Completion]:
            request = {
                "input_ids": prompt,
                "sampling_params": parameters | {"n": count},
                "return_logprob": True,
                "flat_logprobs": True,  # half as long to write and to read
                "return_text_in_logprobs": False,
            }
            return await self._post("/generate", request, read, count)

        return await self._collect(ask, n)

    def conversation(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, **sampling: Any
    ) -> Conversation:
        """Start a conversation of several turns that is trained as one sequence."""

        affinity = Affinity()

        async def reply(history: Sequence[Message]) -> Completion:
            (completion,) = await self.chat(history, n=1, tools=tools, affinity=affinity, **sampling)
            return completion

        return Conversation(reply, messages)

    def _openai_request(self, sampling: dict[str, Any]) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self._model} | self._with_defaults(sampling)
        return request | {"return_token_ids": True} if self._want_tokens else request

    def _with_defaults(self, sampling: dict[str, Any]) -> dict[str, Any]:
        defaults = {"max_tokens": self._defaults.max_tokens, "temperature": self._defaults.temperature}
        return {key: value for key, value in (defaults | sampling).items() if value is not None}

    async def _sample(
        self, path: str, request: dict[str, Any], prompt: str, n: int | None, affinity: Affinity | None = None
    ) -> list[Completion]:
        def read(body: bytes, version: int | None) -> list[Completion]:
            completions = read_openai(body, version, want_tokens=self._want_tokens)
            return [replace(each, prompt=prompt) for each in completions]

        async def ask(count: int) -> list[Completion]:
            return await self._post(path, request | {"n": count}, read, count, affinity)

        return await self._collect(ask, n)

    async def _collect(self, ask: Ask, n: int | None) -> list[Completion]:
        """Ask until there are n samples: some public servers ignore `n` and send one."""
        wanted = self._defaults.n if n is None else n
        completions = await ask(wanted)
        while completions and len(completions) < wanted:
            missing = wanted - len(completions)
            for more in await asyncio.gather(*(ask(1) for _ in range(missing))):
                completions += more
        return completions[:wanted]

    async def _post(
        self, path: str, request: dict[str, Any], read: Reader, samples: int, affinity: Affinity | None = None
    ) -> list[Completion]:
        body = msgspec.json.encode(request)
        deadline = asyncio.get_running_loop().time() + self._limit_seconds

        def give_up_after_deadline(error: Exception, pause: float) -> None:
            if asyncio.get_running_loop().time() + pause > deadline:
                urls = ", ".join(sorted(server.url for server in self._routes.servers))
                raise InferenceUnavailableError(f"no answer from the inference server at {urls}: {error}")

        async def attempt() -> list[Completion]:
            with self._routes.taken(samples, affinity) as server:
                return await self._post_once(server, path, body, read)

        return await retrying(attempt, before_wait=give_up_after_deadline)

    async def _post_once(self, server: Server, path: str, body: bytes, read: Reader) -> list[Completion]:
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(server.url + path, data=body, headers=headers) as response:
                answer = await read_answer(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._setback(server, reason_of(error)) from error
        if response.status == 429 or response.status >= 500:
            raise self._setback(server, f"{response.status} {_excerpt(answer)}", retry_after(response.headers))
        self._routes.answered(server)
        if response.status in (401, 403):
            raise InferenceUnauthorizedError(
                f"the inference server at {server.url} refuses our token ({response.status})"
            )
        if response.status >= 400:
            raise InferenceError(f"POST {path}: {response.status} {_excerpt(answer)}")
        version = response.headers.get(POLICY_VERSION_HEADER, "")
        try:
            return read(answer, int(version) if version.isdecimal() else None)
        except AnswerError as error:
            raise InferenceError(f"POST {path}: {error}") from error

    def _setback(self, server: Server, problem: str, pause: float | None = None) -> TransientError:
        """Another server is tried at once, where there is one."""
        self._routes.failed(server, pause)
        return TransientError(problem, retry_after=0.0 if self._routes.has_available else pause)


def _excerpt(body: bytes) -> str:
    return " ".join(body[:500].decode(errors="replace").split())
