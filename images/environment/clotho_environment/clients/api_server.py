"""The run's API server, as an environment uses it: register, submit groups, read the step, deregister."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
import msgspec

from clotho_contract.api_protocol import (
    EVALUATIONS_PATH,
    IDEMPOTENCY_HEADER,
    PROTOCOL_HEADERS,
    CurrentStep,
    EnvIdentifier,
    EnvRegistration,
    NewEvaluation,
    RegisterEnv,
    refusal_detail,
)
from clotho_contract.history import MOST_EVALUATED
from clotho_contract.progress import LONGEST_NAME
from clotho_contract.retry import Backoff, TransientError, reason_of, retry_after, retrying
from clotho_contract.termination import Reason
from clotho_contract.untrusted import decode
from clotho_environment.sdk.bodies import read_answer
from clotho_environment.sdk.group import Group, InvalidGroupError, Sequence, encode_group

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_HEADERS: Final[Mapping[str, str]] = {}
_LOST: Final = (TransientError, aiohttp.ClientError, TimeoutError)
_UNKNOWN: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


class ApiServerRefusedError(Exception):
    """Permanent: the token or the registration is not accepted."""

    def __init__(self, message: str, reason: Reason = "InvalidConfig") -> None:
        super().__init__(message)
        self.reason: Reason = reason


class _UnknownEnvironmentError(Exception):
    """The server does not have our registration (it restarted without its data): register again."""


class _QueueFullError(TransientError):
    """Back-pressure: the server works, its queue has no room yet."""


class ApiServer:
    """Outages are waited for: every call but `disconnect` is tried again until it gets an answer."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, registration: RegisterEnv) -> None:
        self._session = session
        self._base_url = base_url.rstrip("/")
        self._registration = registration
        self._env_id: int | None = None
        self._registering = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._is_reachable = True
        self._accepts_at_once = self._was_held_up = False
        self._awaited = ""  # what the API server asked to wait for

    @property
    def is_registered(self) -> bool:
        return self._env_id is not None

    async def register(self) -> int:
        """Our id. Returns once the trainer has registered too: before that the server asks environments to wait."""
        async with self._registering:
            if self._env_id is not None:
                return self._env_id
            self._env_id = await retrying(
                self._register_once,
                backoff=Backoff(first=0.2, cap=2.0),
                before_wait=self._note_wait,
            )
            log.info("registered with the API server", extra={"env_id": self._env_id})
            return self._env_id

    def _note_wait(self, error: Exception, _: float) -> None:
        if str(error) != self._awaited:
            self._awaited = str(error)
            log.info("the API server asks to wait: %s", error)

    async def _register_once(self) -> int:
        body = msgspec.json.encode(self._registration)
        answer = _decode(await self._call("POST", "/register-env", body), EnvRegistration)
        if answer.env_id is None:
            raise TransientError(answer.status or "no environment id in its answer")
        return answer.env_id

    @property
    def accepts_at_once(self) -> bool:
        """Whether it took the last group without back-pressure or an outage: the next ones will hardly wait either."""
        return self._accepts_at_once

    async def submit(self, group: Group, sequences: list[Sequence]) -> None:
        """Returns when the server has the group; under back-pressure that is when it has room again.

        One after the other, so that no group is overtaken until its policy is long forgotten.
        """
        async with self._turn:
            self._was_held_up = False
            await self._call_registered(
                "POST", "/scored_data", lambda env_id: encode_group(group, sequences, env_id), new_key()
            )
            self._accepts_at_once = not self._was_held_up

    async def current_step(self) -> int:
        """Also the sign of life that keeps us in the server's list of connected environments."""
        answer = await self._call_registered("GET", "/status-env", _identify)
        return _decode(answer, CurrentStep).current_step

    async def report_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Best effort, as evaluations are: an older server does not take them."""
        kept = dict(list(figures.items())[:MOST_EVALUATED])
        body = NewEvaluation(environment=self._registration.desired_name[:LONGEST_NAME], figures=kept, step=step)
        try:
            await self._call_once("POST", EVALUATIONS_PATH, msgspec.json.encode(body))
        except (*_LOST, _UnknownEnvironmentError, ApiServerRefusedError) as error:
            problem = str(error) or "it has no such route"
            log.warning("the API server did not take the evaluation of step %d: %s", step, problem)

    async def disconnect(self) -> None:
        """Best effort: the server would find out by itself, only later."""
        if self._env_id is None:
            return
        body = _identify(self._env_id)
        try:
            async with asyncio.timeout(5):
                await self._call_once("POST", "/disconnect-env", body)
        except (*_LOST, _UnknownEnvironmentError, ApiServerRefusedError) as error:
            log.warning("failed to deregister from the API server: %s", reason_of(error))

    async def _call_registered(
        self, method: str, path: str, body_for: Callable[[int], bytes], headers: Mapping[str, str] = _NO_HEADERS
    ) -> bytes:
        async def call() -> bytes:
            env_id = await self.register()
            try:
                return await self._call(method, path, body_for(env_id), headers)
            except _UnknownEnvironmentError:
                self._forget(env_id)
                raise

        return await retrying(call, on=(_UnknownEnvironmentError,))

    def _forget(self, env_id: int) -> None:
        if self._env_id == env_id:
            log.warning("the API server has no registration of this environment; registering again")
            self._env_id = None

    async def _call(self, method: str, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
        answer = await retrying(
            lambda: self._call_once(method, path, body, headers),
            on=_LOST,
            before_wait=self._note_setback,
        )
        self._is_reachable = True
        return answer

    async def _call_once(self, method: str, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
        sent = {**PROTOCOL_HEADERS, "Content-Type": "application/json", **headers}
        async with self._session.request(method, self._base_url + path, data=body, headers=sent) as response:
            answer = await read_answer(response)
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ApiServerRefusedError(
                f"the API server at {self._base_url} refuses our token ({response.status})", "Unauthorized"
            )
        if response.status in _UNKNOWN and path != "/register-env":
            raise _UnknownEnvironmentError
        if response.status < 400:
            return answer
        problem = f"{response.status} {refusal_detail(answer)}"
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise _QueueFullError(problem, within=retry_after(response.headers))
        if response.status >= 500 or response.status == HTTPStatus.REQUEST_TIMEOUT:
            raise TransientError(problem, retry_after=retry_after(response.headers) or None)
        refusal = f"the API server refuses {method} {path}: {problem}"
        raise InvalidGroupError(refusal) if path == "/scored_data" else ApiServerRefusedError(refusal)

    def _note_setback(self, error: Exception, _: float) -> None:
        self._was_held_up, self._accepts_at_once = True, False
        if isinstance(error, _QueueFullError):
            return
        if self._is_reachable:
            log.warning("no answer from the API server, trying again: %s", reason_of(error))
        self._is_reachable = False


def new_key() -> Mapping[str, str]:
    """Goes with a group every time that it is sent, so that it counts once though an answer got lost."""
    return {IDEMPOTENCY_HEADER: uuid.uuid4().hex}


def _identify(env_id: int) -> bytes:
    return msgspec.json.encode(EnvIdentifier(env_id))


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        decoded: T = decode(body, kind)
        return decoded
    except msgspec.MsgspecError as error:
        raise ApiServerRefusedError(f"the API server's answer cannot be read: {error}") from error
