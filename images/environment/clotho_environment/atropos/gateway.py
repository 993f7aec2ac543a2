"""A proxy on loopback for an Atropos environment: adds the token, waits out outages, stamps policy versions."""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Final, TypeVar

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct

from clotho_contract.api_protocol import (
    EVALUATIONS_PATH,
    PROTOCOL_HEADERS,
    CurrentStep,
    EnvIdentifier,
    EnvRegistration,
    NewEvaluation,
    refusal_detail,
)
from clotho_contract.history import MOST_EVALUATED
from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_contract.progress import LONGEST_NAME, Count
from clotho_contract.retry import Backoff, TransientError, reason_of, retry_after, retrying
from clotho_contract.untrusted import decode
from clotho_environment.atropos.scored import Scored
from clotho_environment.atropos.versions import VersionMemory
from clotho_environment.clients.api_server import new_key
from clotho_environment.pod.telemetry import Telemetry
from clotho_environment.sdk.bodies import read_answer
from clotho_environment.sdk.completion import AnswerError, read_generate
from clotho_environment.sdk.routing import Routes

log = logging.getLogger(__name__)
T = TypeVar("T")

BODY_LIMIT: Final = 1024**3
SILENCE_SECONDS: Final = 300.0
REFUSAL_LIMIT: Final = 500
_HOLD: Final = (408, 429, 500, 502, 503, 504)
_NO_HEADERS: Final[Mapping[str, str]] = {}
_PASSED_ON: Final = ("Content-Type", POLICY_VERSION_HEADER)


class Reported(Struct, frozen=True):
    """An evaluation as the environment reports it."""

    figures: Annotated[dict[Annotated[str, Meta(max_length=LONGEST_NAME)], float], Meta(max_length=MOST_EVALUATED)]
    step: Count | None = None


class Gateway:
    """The child uses `api_server` and `inference` as its addresses."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        telemetry: Telemetry,
        *,
        inference: Sequence[str],
        api_server: str,
        environment: str = "",
    ) -> None:
        """`environment` is its name in the run; without one, evaluations go to the metrics alone."""
        self._environment = environment
        self._session = session
        self._telemetry = telemetry
        self._api_server = api_server.rstrip("/")
        self._routes = Routes.to(inference)
        self._versions = VersionMemory()
        self._registration: bytes | None = None
        self._env_id: int | None = None
        self._down: set[str] = set()
        self._given_up: dict[bytes, Mapping[str, str]] = {}
        self._last_activity = time.monotonic()
        self.address = ""
        self.groups_sent = 0
        self.groups_refused = 0  # since the last one was accepted
        self.last_refusal = ""
        self.refusal: str | None = None

    @property
    def api_server(self) -> str:
        return self.address + "/api"

    @property
    def inference(self) -> str:
        return self.address + "/inference"

    def use_servers(self, inference: Sequence[str]) -> None:
        """From now on."""
        self._routes.update(inference)

    def unhealthy(self) -> str | None:
        """A registered environment asks for the status ten times a second; requests that we hold back count too."""
        silence = time.monotonic() - self._last_activity
        is_silent = self._env_id is not None and silence > SILENCE_SECONDS
        return f"no request from the environment for {silence:.0f} s" if is_silent else None

    @property
    def is_registered(self) -> bool:
        return self._env_id is not None

    def unready(self) -> str | None:
        return None if self.is_registered else "the environment has not registered"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_post("/api/register-env", self._register)
        app.router.add_get("/api/status-env", self._status)
        app.router.add_post("/api/scored_data", self._scored)
        app.router.add_post("/api/scored_data_list", self._scored)
        app.router.add_post("/api" + EVALUATIONS_PATH, self._evaluated)
        app.router.add_post("/inference/generate", self._generate)
        app.router.add_route("*", "/{side:api|inference}/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
        finally:
            await runner.cleanup()

    async def current_step(self) -> int | None:
        """None before the environment has registered, and when the API server's answer does not contain it."""
        if self._env_id is None:
            await self._call("api", "GET", "/info")  # a token that is refused shows here already
            return None
        answer = await self._call_registered("GET", "/status-env", self._identify)
        status = answer.decoded(CurrentStep)
        return status.current_step if status else None

    async def disconnect(self) -> None:
        """Atropos environments never deregister themselves."""
        if self._env_id is None:
            return
        try:
            async with asyncio.timeout(5):
                await self._send("api", "POST", "/disconnect-env", msgspec.json.encode(EnvIdentifier(self._env_id)))
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("failed to deregister from the API server: %s", reason_of(error))

    async def _register(self, request: web.Request) -> web.Response:
        self._registration = await request.read()
        answer = await self._call("api", "POST", "/register-env", self._registration)
        if registration := answer.decoded(EnvRegistration):
            self._env_id = registration.env_id
        return answer.respond()

    async def _status(self, request: web.Request) -> web.Response:
        await request.read()
        answer = await self._call_registered("GET", "/status-env", self._identify)
        return answer.respond()

    def _identify(self) -> bytes:
        return msgspec.json.encode({"env_id": self._env_id})

    async def _call_registered(
        self, method: str, path: str, body: Callable[[], bytes], headers: Mapping[str, str] = _NO_HEADERS
    ) -> "_Answer":
        """The child keeps the id of its first registration; the server may have a newer one."""
        while True:
            answer = await self._call("api", method, path, body(), headers)
            if answer.status != 404 or self._registration is None:
                return answer
            await self._register_again()

    async def _register_again(self) -> None:
        log.warning("the API server has no registration of this environment; registering again")

        async def register() -> int:
            answer = await self._call("api", "POST", "/register-env", self._registration or b"{}")
            registration = answer.decoded(EnvRegistration)
            if registration is None or registration.env_id is None:
                raise TransientError(f"{answer.status} {answer.excerpt}")
            return registration.env_id

        self._env_id = await retrying(register, backoff=Backoff(first=0.2, cap=2.0))

    async def _scored(self, request: web.Request) -> web.Response:
        body = await request.read()  # aiohttp has undone the compression
        path = request.path.removeprefix("/api")
        try:
            groups = [Scored.read(raw, self._versions) for raw in _listed(body)]
        except msgspec.MsgspecError:  # the API server's answer names what is wrong with it
            answer = await self._call("api", "POST", path, body)
            if answer.status >= 400:
                self._count_refusal(answer)
            return answer.respond()
        with self._key(body) as key:
            answer = await self._submit(path, groups, key)
        if answer.status >= 400:
            self._count_refusal(answer)
            return answer.respond()
        self.groups_sent += len(groups)
        self.groups_refused = 0
        for group in groups:
            self._telemetry.sent(group.scores, group.tokens, group.version)
        return answer.respond()

    async def _evaluated(self, request: web.Request) -> web.Response:
        """From `launch.py`, which does not have the environment's name in the run."""
        try:
            found = decode(await request.read(), Reported)
        except msgspec.MsgspecError as error:
            return web.json_response({"detail": str(error)}, status=422)
        figures = {name: value for name, value in found.figures.items() if math.isfinite(value)}
        if not figures:
            return web.json_response({})
        self._telemetry.evaluated(figures)
        if not self._environment:
            return web.json_response({})
        body = NewEvaluation(environment=self._environment, figures=figures, step=found.step)
        return (await self._send("api", "POST", EVALUATIONS_PATH, msgspec.json.encode(body))).respond()

    def _count_refusal(self, answer: "_Answer") -> None:
        self._telemetry.count("refused")
        self.groups_refused += 1
        self.last_refusal = f"{answer.status} {refusal_detail(answer.body)[:REFUSAL_LIMIT]}"
        log.error("the API server refused a group: %s", self.last_refusal)

    @contextmanager
    def _key(self, body: bytes) -> Iterator[Mapping[str, str]]:
        """A child that gave up waiting sends the same again: the server may have it, so its key stays the same."""
        digest = hashlib.sha256(body).digest()
        key = self._given_up.pop(digest, None) or new_key()
        try:
            yield key
        except asyncio.CancelledError:
            self._given_up[digest] = key
            raise

    async def _submit(self, path: str, groups: list[Scored], key: Mapping[str, str]) -> "_Answer":
        def stamped() -> bytes:
            fields = [group.stamped(self._env_id) for group in groups]
            return msgspec.json.encode(fields if path.endswith("_list") else fields[0])

        with self._telemetry.waiting.track_inprogress():
            return await self._call_registered("POST", path, stamped, key)

    async def _generate(self, request: web.Request) -> web.Response:
        answer = await self._call("inference", "POST", "/generate", await request.read())
        if answer.status == 200:
            self._remember_versions(answer)
        return answer.respond()

    def _remember_versions(self, answer: "_Answer") -> None:
        version = answer.headers.get(POLICY_VERSION_HEADER, "")
        try:
            completions = read_generate(answer.body, (), int(version) if version.isdecimal() else None)
        except AnswerError as error:
            log.warning("%s", error)
            return
        for completion in completions:
            if completion.policy_version is not None:
                self._versions.remember(completion.tokens, completion.policy_version)

    async def _pass_on(self, request: web.Request) -> web.Response:
        side, path = request.match_info["side"], "/" + request.match_info["path"]
        return (await self._call(side, request.method, path, await request.read())).respond()

    async def _call(
        self, side: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = _NO_HEADERS
    ) -> "_Answer":
        """Wait for as long as the other side is down or full: Atropos would end, or lose the group."""

        async def call() -> _Answer:
            self._last_activity = time.monotonic()
            answer = await self._send(side, method, path, body, headers)
            if answer.status in _HOLD:
                raise TransientError(f"{answer.status} {answer.excerpt}", retry_after=self._pause(side, answer))
            return answer

        answer = await retrying(
            call,
            on=(TransientError, aiohttp.ClientError, TimeoutError),
            before_wait=lambda error, _: self._mark_down(side, reason_of(error)),
        )
        if answer.status in (401, 403):
            self.refusal = f"{answer.origin} refuses our token ({answer.status})"
        self._down.discard(side)
        return answer

    def _pause(self, side: str, answer: "_Answer") -> float | None:
        """Another server is tried at once, where there is one."""
        if side == "inference" and self._routes.has_available:
            return 0.0
        return retry_after(answer.headers) or None

    async def _send(
        self, side: str, method: str, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS
    ) -> "_Answer":
        if side == "inference":
            return await self._send_to_a_server(method, path, body)
        return await self._request(self._api_server, method, path, body, {**PROTOCOL_HEADERS, **headers})

    async def _send_to_a_server(self, method: str, path: str, body: bytes) -> "_Answer":
        with self._routes.taken(_samples(body)) as server:
            try:
                answer = await self._request(server.url, method, path, body, _NO_HEADERS)
            except (aiohttp.ClientError, TimeoutError):
                self._routes.failed(server)
                raise
            if answer.status in _HOLD:
                self._routes.failed(server, retry_after(answer.headers))
            else:
                self._routes.answered(server)
            return answer

    async def _request(
        self, base_url: str, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> "_Answer":
        sent = {"Content-Type": "application/json", **headers}
        async with self._session.request(method, base_url + path, data=body or None, headers=sent) as response:
            return _Answer(response.status, response.headers, await read_answer(response), base_url)

    def _mark_down(self, side: str, problem: str) -> None:
        if side not in self._down:
            log.info(
                "%s is not available, the environment waits: %s",
                "the API server" if side == "api" else "inference",
                problem,
            )
        self._down.add(side)


def _listed(body: bytes) -> list[Raw]:
    listed: list[Raw] = decode(body, list[Raw]) if body.lstrip()[:1] == b"[" else [Raw(body)]
    return listed


class _Sampling(Struct, frozen=True):
    n: int = 1


class _Samples(Struct, frozen=True):
    """How many answers a request asks for, in OpenAI's or in SGLang's place."""

    n: int | None = None
    sampling_params: _Sampling = _Sampling()


def _samples(body: bytes) -> int:
    try:
        wanted: _Samples = decode(body, _Samples)
    except msgspec.MsgspecError:
        return 1
    return max(wanted.n or wanted.sampling_params.n, 1)


class _Answer(Struct):
    status: int
    headers: Mapping[str, str]
    body: bytes
    origin: str  # the server's base URL

    @property
    def excerpt(self) -> str:
        return self.body[:300].decode(errors="replace")

    def decoded(self, kind: type[T]) -> T | None:
        """None for a refusal, and for a body of another shape."""
        if self.status != 200:
            return None
        try:
            decoded: T = decode(self.body, kind)
        except msgspec.MsgspecError as error:
            log.warning("the API server's answer cannot be read: %s", error)
            return None
        return decoded

    def respond(self) -> web.Response:
        headers: dict[str, Any] = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
        return web.Response(status=self.status, headers=headers, body=self.body)
