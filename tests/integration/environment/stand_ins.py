"""An API server and an inference server in the test's own event loop, whose behaviour tests control."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN = "the-run's-token"


def tokens_of(text: str) -> list[int]:
    return [ord(character) for character in text]


@dataclass
class StandIn:
    """What both have in common: a port that stays the same over restarts, the token, and a log of requests."""

    port: int = 0
    requests: list[str] = field(default_factory=list)
    troubles: list[web.Response | Callable[[], web.Response]] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _runner: web.AppRunner | None = None

    async def wait_for_requests(self, path: str, times: int = 1) -> None:
        """Returns when so many requests for the path have come."""
        async with asyncio.timeout(120), self.news:
            await self.news.wait_for(lambda: self.requests.count(path) >= times)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=2**28)
        self.add_routes(app)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    def add_routes(self, app: web.Application) -> None:
        raise NotImplementedError

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        async with self.news:
            self.requests.append(request.path)
            self.news.notify_all()
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"detail": "the token is wrong"}, status=401)
        if self.troubles and request.method == "POST":
            trouble = self.troubles.pop(0)
            return trouble() if callable(trouble) else trouble
        return await handler(request)


@dataclass
class ApiServerStandIn(StandIn):
    """One step for each `groups_a_step` groups."""

    trainer_is_registered: bool = True
    registrations_to_delay: int = 0
    groups_a_step: int = 1
    groups: list[dict[str, Any]] = field(default_factory=list)
    registrations: list[dict[str, Any]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    deregistrations: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # of each group, as often as it was sent
    answers_to_lose: int = 0
    is_silent: bool = False
    refusal: str = ""  # of every group
    status_body: bytes = b""  # instead of the status

    @property
    def step(self) -> int:
        return len(self.groups) // self.groups_a_step

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/info", self._info)
        app.router.add_get("/status", self._status)
        app.router.add_get("/status-env", self._status_env)
        app.router.add_post("/register-env", self._register)
        app.router.add_post("/disconnect-env", self._disconnect)
        app.router.add_post("/evaluations", self._evaluated)
        app.router.add_post("/scored_data", self._scored)
        app.router.add_post("/scored_data_list", self._scored)

    async def groups_reach(self, count: int) -> None:
        async with asyncio.timeout(120), self.news:
            await self.news.wait_for(lambda: len(self.groups) >= count)

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"batch_size": 8 if self.trainer_is_registered else -1, "max_token_len": 64})

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"current_step": self.step, "queue_size": 0})

    async def _status_env(self, request: web.Request) -> web.Response:
        if self.status_body:
            return web.Response(body=self.status_body)
        if (await request.json())["env_id"] not in self.known:
            return web.json_response({"detail": "no such environment"}, status=404)
        status = {"unallocated_fraction": 1.0, "self_queue_size": 0, "max_group_size": 8, "env_weight": 1.0}
        return web.json_response({"current_step": self.step, "queue_size": 0} | status)

    async def _register(self, request: web.Request) -> web.Response:
        if not self.trainer_is_registered or self.registrations_to_delay:
            self.registrations_to_delay = max(self.registrations_to_delay - 1, 0)
            return web.json_response({"status": "wait for trainer to start"})
        self.registrations.append(await request.json())
        env_id = len(self.registrations)
        self.known.add(env_id)
        answer = {"wandb_name": "env_0", "checkpoint_dir": "", "starting_step": 0, "checkpoint_interval": -1}
        return web.json_response({"status": "success", "env_id": env_id, "num_steps": 10} | answer)

    async def _disconnect(self, request: web.Request) -> web.Response:
        self.deregistrations.append((await request.json())["env_id"])
        return web.json_response({"status": "success"})

    async def _evaluated(self, request: web.Request) -> web.Response:
        self.evaluations.append(await request.json())
        return web.json_response({"status": "received"})

    async def _scored(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.refusal:
            return web.json_response({"detail": self.refusal}, status=422)
        content = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        groups = content if isinstance(content, list) else [content]
        if any(group["env_id"] not in self.known for group in groups):
            return web.json_response({"detail": "no such environment"}, status=404)
        key = request.headers["Idempotency-Key"]
        async with self.news:
            self.groups.extend(groups if key not in self.keys else [])
            self.keys.append(key)
            self.news.notify_all()
        if self.answers_to_lose and request.transport:
            self.answers_to_lose -= 1
            request.transport.close()
        if self.is_silent:
            await asyncio.Event().wait()
        return web.json_response({"status": "received"})


@dataclass
class InferenceStandIn(StandIn):
    """Answers with `reply(prompt)`; a token is a character, each has log-probability -0.5."""

    reply: Callable[[str], str] = lambda prompt: prompt[:1] * 8
    version: int = 3
    ignores_n: bool = False
    has_tokens: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/health", self._health)
        app.router.add_get("/tokenizer.tar", self._tokenizer)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/generate", self._generate)
        self.archive = b""

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _tokenizer(self, _: web.Request) -> web.Response:
        return web.Response(body=self.archive)

    async def _completions(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        return self._openai(body, body["prompt"], lambda text: {"text": text})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        prompt = body["messages"][-1]["content"]
        return self._openai(body, prompt, lambda text: {"message": {"role": "assistant", "content": text}})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        text = self.reply("".join(map(chr, body["input_ids"])))
        logprobs = [[-0.5, token, None] for token in tokens_of(text)]
        answer = {"text": text, "meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": logprobs}}
        n = body["sampling_params"].get("n", 1)
        return self._stamped(answer if n == 1 else [answer] * n)

    async def _read(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        return body

    def _openai(self, body: dict[str, Any], prompt: str, shape: Callable[[str], dict[str, Any]]) -> web.Response:
        text = self.reply(prompt)
        tokens = tokens_of(text)
        choice = shape(text) | {"finish_reason": "stop"}
        if self.has_tokens and body.get("return_token_ids"):
            chat = {"content": [{"logprob": -0.5} for _ in tokens]}
            plain = {"token_logprobs": [-0.5 for _ in tokens]}
            choice |= {"token_ids": tokens, "prompt_token_ids": tokens_of(prompt)}
            choice["logprobs"] = chat if "message" in choice else plain
        n = 1 if self.ignores_n else body.get("n", 1)
        return self._stamped({"model": body.get("model"), "choices": [choice] * n})

    def _stamped(self, answer: Any) -> web.Response:
        return web.json_response(answer, headers={"X-Clotho-Policy-Version": str(self.version)})


@asynccontextmanager
async def started(*stand_ins: StandIn) -> AsyncIterator[None]:
    try:
        for stand_in in stand_ins:
            await stand_in.start()
        yield
    finally:
        for stand_in in stand_ins:
            await stand_in.stop()
