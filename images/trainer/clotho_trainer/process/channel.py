"""The connection that every rank keeps to rank 0: joining, the order of steps, stopping, and the end of any rank.

It needs no torch, so that a rank that is missing or has another version is found before a model is loaded; and the
kernel closes it with the process, so that a rank that dies is noticed at once, in a collective or not.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import msgspec
from msgspec import Struct

from clotho_contract.retry import Backoff, reason_of, retrying
from clotho_contract.termination import Reason, Termination
from clotho_trainer.failures import TrainerError

log = logging.getLogger(__name__)

JOIN_SECONDS = 900.0  # images are pulled and claims bound at different speeds
LATE_SECONDS = 45.0  # until ranks that have not joined are reported
_GOODBYE_SECONDS = 2.0
_KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}  # a node that vanished

Stage = Literal["joined", "loaded", "serving"]
What = Literal["joined", "meet", "begin", "step", "gather"]
_TO_REACH: dict[Stage, str] = {"joined": "join", "loaded": "load the model", "serving": "serve"}


class Hello(Struct, frozen=True, tag=True):
    rank: int
    size: int
    software: str


class Reached(Struct, frozen=True, tag=True):
    stage: Stage


class Stopping(Struct, frozen=True, tag=True):
    """A signal came: rank 0 stops all ranks in order, with its last checkpoint."""


class Ended(Struct, frozen=True, tag=True):
    reason: Reason
    message: str
    step: int | None = None


class Order(Struct, frozen=True, tag=True):
    """What a follower does next. `port`: where the collectives meet."""

    what: What
    port: int = 0


Message = Hello | Reached | Stopping | Ended | Order
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Leader:
    """Rank 0's side. `ended` is how this process must end because another rank did. `on_late` gets the ranks that have
    not joined after `late_seconds`, and again whenever one of them joins."""

    def __init__(
        self,
        names: Sequence[str],
        software: str,
        stop: asyncio.Event,
        on_late: Callable[[tuple[int, ...]], None] = lambda _: None,
        late_seconds: float = LATE_SECONDS,
    ) -> None:
        self._names = names
        self._software = software
        self._stop = stop
        self._on_late = on_late
        self._late_seconds = late_seconds
        self._is_late = False
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._reached: dict[Stage, set[int]] = {"joined": set(), "loaded": set(), "serving": set()}
        self._news = asyncio.Condition()
        self._is_closing = False
        self.ended: asyncio.Future[Termination] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[None]:
        try:
            server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            raise TrainerError(
                "DependencyUnavailable",
                f"the ranks cannot meet on port {port} of rank 0: {error.strerror}; another process may have it",
            ) from error
        timer = asyncio.get_running_loop().call_later(self._late_seconds, self._become_late)
        try:
            yield
        finally:
            timer.cancel()
            server.close()

    async def all_reached(
        self, stage: Stage, on_wait: Callable[[str], None], limit_seconds: float | None = None
    ) -> None:
        def missing() -> str:
            return ", ".join(self._names[rank] for rank in self._missing(stage))

        try:
            async with asyncio.timeout(limit_seconds), self._news:
                while missing():
                    on_wait(f"{missing()} to {_TO_REACH[stage]}")
                    await self._news.wait()
        except TimeoutError as error:
            raise TrainerError(
                "DependencyUnavailable", f"{missing()} has not joined within {limit_seconds:.0f} s; see its pod"
            ) from error

    def order(self, what: What, port: int = 0) -> None:
        for writer in self._writers.values():
            _send(writer, Order(what, port))

    async def close(self, end: Termination) -> None:
        """The other ranks end with this one."""
        self._is_closing = True
        for writer in self._writers.values():
            _send(writer, Ended(end.reason, end.message, end.step))
        await asyncio.gather(*(_goodbye(writer) for writer in self._writers.values()))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _keep_alive(writer)
        hello = _decoded(await _read(reader))
        if not isinstance(hello, Hello):  # not one of ours
            writer.close()
            return
        if problem := self._foreign(hello) or self._mixed(hello):
            log.error("%s", problem)
            _send(writer, Ended("DependencyUnavailable", problem))
            await _goodbye(writer)
            return
        self._writers[hello.rank] = writer
        _send(writer, Order("joined"))
        await self._note("joined", hello.rank)
        await self._follow(hello.rank, reader)

    def _foreign(self, hello: Hello) -> str | None:
        """Of another run or attempt: refused, and this team waits on for its own."""
        if not 0 < hello.rank < len(self._names) or hello.size != len(self._names):
            return f"rank {hello.rank} of {hello.size} does not belong to this team of {len(self._names)} ranks"
        return f"{self._names[hello.rank]} has already joined" if hello.rank in self._writers else None

    def _mixed(self, hello: Hello) -> str | None:
        """Waiting would not help, so all ranks end."""
        if hello.software == self._software:
            return None
        problem = (
            f"{self._names[hello.rank]} runs another version than rank 0: {hello.software} instead of "
            f"{self._software}; use one image for all ranks, by its digest"
        )
        self._end(problem)
        return problem

    async def _follow(self, rank: int, reader: asyncio.StreamReader) -> None:
        cause = "without a message"
        while line := await _read(reader):
            match _decoded(line):
                case Reached(stage):
                    await self._note(stage, rank)
                case Stopping():
                    log.info("%s is asked to stop: so are all ranks", self._names[rank])
                    self._stop.set()
                case Ended(reason, message):
                    cause = f"with {reason}: {message}"
        self._end(f"{self._names[rank]} ended {cause}")

    async def _note(self, stage: Stage, rank: int) -> None:
        async with self._news:
            self._reached[stage].add(rank)
            self._news.notify_all()
        if self._is_late and stage == "joined":
            self._on_late(self._missing("joined"))

    def _missing(self, stage: Stage) -> tuple[int, ...]:
        return tuple(rank for rank in range(1, len(self._names)) if rank not in self._reached[stage])

    def _become_late(self) -> None:
        self._is_late = True
        self._on_late(self._missing("joined"))

    def _end(self, message: str) -> None:
        if not self._is_closing and not self.ended.done():
            self.ended.set_result(Termination(reason="DependencyUnavailable", message=message))


class Follower:
    """The other ranks' side. `ended` is how this process must end because rank 0 did."""

    def __init__(self, rank_0: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._rank_0 = rank_0
        self._writer = writer
        self.orders: asyncio.Queue[Order] = asyncio.Queue()
        self.ended: asyncio.Future[Termination] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader))

    def reached(self, stage: Stage) -> None:
        _send(self._writer, Reached(stage))

    def ask_to_stop(self) -> None:
        _send(self._writer, Stopping())

    async def close(self, end: Termination) -> None:
        self._reading.cancel()
        _send(self._writer, Ended(end.reason, end.message, end.step))
        await _goodbye(self._writer)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await _read(reader):
            match _decoded(line):
                case Order() as order:
                    self.orders.put_nowait(order)
                case Ended() as end:
                    self.ended.set_result(self._consequence(end))
                    return
        self.ended.set_result(
            Termination(reason="DependencyUnavailable", message=f"{self._rank_0} ended without a message")
        )

    def _consequence(self, end: Ended) -> Termination:
        if end.reason in ("Finished", "Stopped"):
            return Termination(reason=end.reason, message=end.message, step=end.step)
        message = f"{self._rank_0} ended with {end.reason}: {end.message}"
        return Termination(reason="DependencyUnavailable", message=message, step=end.step)


async def join(hello: Hello, rank_0: str, host: str, port: int, limit_seconds: float = JOIN_SECONDS) -> Follower:
    """Rank 0 may start later than this rank, and so may the name of its host."""
    deadline = asyncio.get_running_loop().time() + limit_seconds

    def give_up(error: Exception, pause: float) -> None:
        if asyncio.get_running_loop().time() + pause > deadline:
            raise TrainerError(
                "DependencyUnavailable",
                f"{rank_0} does not answer at {host}:{port} within {limit_seconds:.0f} s "
                f"({reason_of(error)}); see its pod",
            )

    reader, writer = await retrying(
        lambda: asyncio.open_connection(host, port), on=(OSError,), backoff=Backoff(0.2, 2.0), before_wait=give_up
    )
    _keep_alive(writer)
    _send(writer, hello)
    return Follower(rank_0, reader, writer)


def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Nothing, once the other end has reset the connection: uvloop would raise an error of its own."""
    if not writer.is_closing():
        writer.write(msgspec.json.encode(message) + b"\n")


def _decoded(line: bytes) -> Message | None:
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        log.warning("a message between ranks cannot be read: %s", error)
        return None


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end of the connection, however it came."""
    try:
        return await reader.readline()
    except (OSError, ValueError):
        return b""


async def _goodbye(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_GOODBYE_SECONDS):
            await writer.drain()
            writer.close()
            await writer.wait_closed()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
