"""The run's API server, as an environment uses it: register, hand in groups, ask for the step, say goodbye."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from clotho_contract.names import IDEMPOTENCY_HEADER
from clotho_contract.termination import Reason
from clotho_environment.group import Group, InvalidGroupError, Sequence, encode_group
from clotho_environment.retry import backoff, retry_after

log = logging.getLogger(__name__)

T = TypeVar("T")

PROTOCOL: Final = {"X-Clotho-Protocol": "1"}  # asks for 429 with Retry-After instead of silent buffering
_NO_HEADERS: Final[Mapping[str, str]] = {}
_UNKNOWN: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_TRANSIENT: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class ApiServerRefusedError(Exception):
    """Permanent: the token or the registration is not accepted."""

    def __init__(self, message: str, reason: Reason = "InvalidConfig") -> None:
        super().__init__(message)
        self.reason: Reason = reason


class Registration(Struct, frozen=True):
    """How this environment introduces itself."""

    desired_name: str
    group_size: int
    max_token_length: int
    weight: float = 1.0
    min_batch_allocation: float | None = None


class _RegisterAnswer(Struct, frozen=True):
    status: str = ""
    env_id: int | None = None


class _Step(Struct, frozen=True):
    current_step: int


class _UnknownEnvironmentError(Exception):
    """The server forgot us (it restarted empty, or we were silent for too long): register again."""


class ApiServer:
    """Outages are waited for: every call but `disconnect` is tried again until it gets an answer."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, registration: Registration) -> None:
        self._session = session
        self._base_url = base_url.rstrip("/")
        self._registration = registration
        self._env_id: int | None = None
        self._registering = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._is_reachable = True

    @property
    def is_registered(self) -> bool:
        return self._env_id is not None

    async def register(self) -> int:
        """Our id. Returns once the trainer has registered too: before that the server asks environments to wait."""
        async with self._registering:
            if self._env_id is not None:
                return self._env_id
            body = msgspec.json.encode(self._registration)
            for delay in backoff(first=0.2, cap=2.0):
                answer = _decode(await self._call("POST", "/register-env", body), _RegisterAnswer)
                if answer.env_id is not None:
                    self._env_id = answer.env_id
                    log.info("registered with the API server", extra={"env_id": answer.env_id})
                    return answer.env_id
                log.info("the API server asks to wait: %s", answer.status or "no environment id in its answer")
                await asyncio.sleep(delay)
            raise AssertionError("backoff never ends")

    async def submit(self, group: Group, sequences: list[Sequence]) -> None:
        """Returns when the server has the group; under back-pressure that is when it has room again.

        One after the other, so that no group is overtaken until its policy is long forgotten.
        """
        async with self._turn:
            await self._call_registered(
                "POST", "/scored_data", lambda env_id: encode_group(group, sequences, env_id), new_key()
            )

    async def current_step(self) -> int:
        """Also the sign of life that keeps us in the server's list of connected environments."""
        answer = await self._call_registered(
            "GET", "/status-env", lambda env_id: msgspec.json.encode({"env_id": env_id})
        )
        return _decode(answer, _Step).current_step

    async def disconnect(self) -> None:
        """Best effort: the server would find out by itself, only later."""
        if self._env_id is None:
            return
        body = _identify(self._env_id)
        try:
            async with asyncio.timeout(5):
                await self._call_once("POST", "/disconnect-env", body)
        except (aiohttp.ClientError, TimeoutError, _UnknownEnvironmentError, ApiServerRefusedError) as error:
            log.warning("could not say goodbye to the API server: %s", error)

    async def _call_registered(
        self, method: str, path: str, body_for: Callable[[int], bytes], headers: Mapping[str, str] = _NO_HEADERS
    ) -> bytes:
        for delay in backoff():
            env_id = await self.register()
            try:
                return await self._call(method, path, body_for(env_id), headers)
            except _UnknownEnvironmentError:
                self._forget(env_id)
                await asyncio.sleep(delay)
        raise AssertionError("backoff never ends")

    def _forget(self, env_id: int) -> None:
        if self._env_id == env_id:
            log.warning("the API server does not know this environment any more; registering again")
            self._env_id = None

    async def _call(self, method: str, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
        for delay in backoff():
            try:
                status, answered, answer = await self._call_once(method, path, body, headers)
            except (aiohttp.ClientError, TimeoutError) as error:
                self._mark_unreachable(f"{type(error).__name__}: {error}")
                await asyncio.sleep(delay)
                continue
            if status < 400:
                self._is_reachable = True
                return answer
            asked = retry_after(answered) or delay
            if status == HTTPStatus.TOO_MANY_REQUESTS:  # back-pressure: all is well, only full, perhaps not for long
                asked = min(asked, delay)
            else:
                self._mark_unreachable(f"{status} {answer[:200].decode(errors='replace')}")
            await asyncio.sleep(asked)
        raise AssertionError("backoff never ends")

    async def _call_once(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS
    ) -> tuple[int, Mapping[str, str], bytes]:
        sent = {**PROTOCOL, "Content-Type": "application/json", **headers}
        async with self._session.request(method, self._base_url + path, data=body, headers=sent) as response:
            answer = await response.read()
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ApiServerRefusedError(
                f"the API server at {self._base_url} refuses our token ({response.status})", "Unauthorized"
            )
        if response.status in _UNKNOWN and path != "/register-env":
            raise _UnknownEnvironmentError
        if 400 <= response.status < 500 and response.status not in _TRANSIENT:
            problem = f"the API server refuses {method} {path}: {response.status} {_detail(answer)}"
            raise InvalidGroupError(problem) if path == "/scored_data" else ApiServerRefusedError(problem)
        return response.status, response.headers, answer

    def _mark_unreachable(self, problem: str) -> None:
        if self._is_reachable:
            log.warning("the API server does not answer, trying again: %s", problem)
        self._is_reachable = False


def new_key() -> Mapping[str, str]:
    """Goes with a group every time that it is sent, so that it counts once though an answer got lost."""
    return {IDEMPOTENCY_HEADER: uuid.uuid4().hex}


def _identify(env_id: int) -> bytes:
    return msgspec.json.encode({"env_id": env_id})


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ApiServerRefusedError(f"the API server's answer cannot be read: {error}") from error


def _detail(body: bytes) -> str:
    """FastAPI's shape, which Atropos clients know: a sentence, or a list of problems with one each."""
    try:
        detail = msgspec.json.decode(body, type=_Detail).detail
    except msgspec.MsgspecError:
        return body[:300].decode(errors="replace")
    return detail if isinstance(detail, str) else "; ".join(problem.msg for problem in detail)


class _Problem(Struct):
    msg: str


class _Detail(Struct):
    detail: str | list[_Problem]
