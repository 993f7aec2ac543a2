"""A replica's side of the trainer's policy port. It reads in a thread of its own, straight into a file in memory, so
that gigabytes are copied once and hold up nothing else in this process."""

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlencode, urlsplit

import xxhash

from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_contract.policy_updates import AFTER, ATTEMPT, ATTEMPT_HEADER, DIGEST_HEADER, HOLD_SECONDS, POLICY_PATH
from clotho_contract.retry import TransientError, retry_after
from clotho_trainer.model.memory_file import MemoryFile, sized
from clotho_trainer.model.trained import TrainedParameters, read_trained

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = HOLD_SECONDS + 25
_PIECE = 2**23  # bytes, small enough to be in the processor's cache when their digest is computed


@dataclass(frozen=True)
class Received:
    attempt: str
    trained: TrainedParameters  # until the next poll, which overwrites them
    seconds: float


class PolicyPort:
    """`heard(newest)` is called with each sign of the trainer, in the thread that reads."""

    def __init__(self, trainer: str, token: str, heard: Callable[[int], None]) -> None:
        address = urlsplit(trainer)
        self._host, self._port = address.hostname or "", address.port
        self._headers = {"Authorization": f"Bearer {token}"}
        self._heard = heard
        self._file: MemoryFile | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")  # a stop does not wait for it

    async def poll(self, version: int | None, attempt: str) -> Received | None:
        """None when the trainer has nothing new."""
        held = {AFTER: "" if version is None else str(version), ATTEMPT: attempt}
        connection = HTTPConnection(self._host, self._port, timeout=_CONNECT_SECONDS)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, connection, held)
        except asyncio.CancelledError:
            _hang_up(connection)
            raise

    def _ask(self, connection: HTTPConnection, held: dict[str, str]) -> Received | None:
        with closing(connection):
            connection.connect()
            connection.sock.settimeout(_SILENCE_SECONDS)
            connection.request("GET", f"{POLICY_PATH}?{urlencode(held)}", headers=self._headers)
            response = connection.getresponse()
            if response.status not in (200, 204):
                excerpt = response.read(300).decode(errors="replace")
                raise TransientError(f"{response.status} {excerpt}", retry_after=retry_after(dict(response.headers)))
            text = response.headers.get(POLICY_VERSION_HEADER, "")
            if not text.isdecimal():
                raise TransientError(f"the trainer's answer has no {POLICY_VERSION_HEADER}")
            self._heard(int(text))
            return None if response.status == 204 else self._read(response, int(text))

    def _read(self, response: HTTPResponse, version: int) -> Received:
        began = time.monotonic()
        if not response.length:
            raise TransientError("the trainer's answer does not say how long it is")
        self._file = file = sized(self._file, response.length)
        digest = xxhash.xxh3_128()
        for start in range(0, file.size, _PIECE):
            piece = file.view[start : start + _PIECE]
            if response.readinto(piece) < len(piece):
                raise TransientError("the trainer's answer ended before all parameters had come")
            digest.update(piece)
            self._heard(version)
        if digest.hexdigest() != response.headers.get(DIGEST_HEADER, ""):
            raise TransientError("the trainer's answer was damaged on its way: its digest differs")
        try:
            trained = TrainedParameters(version, read_trained(file.path), file.path)
        except ValueError as error:
            raise TransientError(str(error)) from error
        return Received(response.headers.get(ATTEMPT_HEADER, ""), trained, time.monotonic() - began)


def _hang_up(connection: HTTPConnection) -> None:
    """The thread that reads from it ends then."""
    if (open_socket := connection.sock) is not None:
        with suppress(OSError):  # it has ended already
            open_socket.shutdown(socket.SHUT_RDWR)
