"""A rank among others: how rank 0 and its followers come together before the first step, and end together."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.progress import MOST_MISSING
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError, classify
from clotho_trainer.process import channel
from clotho_trainer.process.channel import Follower, Hello, Leader
from clotho_trainer.process.ending import leave
from clotho_trainer.process.place import Place, names, software
from clotho_trainer.process.stopping import STOPPED_EARLY, unless_stopped
from clotho_trainer.process.training import loaded_within_memory, make_backend
from clotho_trainer.reporting.board import Board
from clotho_trainer.training.backend import Backend

if TYPE_CHECKING:
    from clotho_trainer.training.local.backend import LocalBackend
    from clotho_trainer.training.local.team import Task, Team

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Companions:
    """The other ranks, as rank 0 has them. This is the trainer that has none."""

    async def meet(self, backend: Backend) -> None:
        """Once the model is loaded."""

    async def begin(self) -> None:
        """Once it is served."""

    async def close(self, end: Termination) -> None: ...


class Followers(Companions):
    def __init__(self, leader: Leader, place: Place, config: RunConfig, board: Board) -> None:
        self._leader = leader
        self._place = place
        self._config = config
        self._board = board

    async def meet(self, backend: Backend) -> None:
        await self._leader.all_reached("joined", self._board.wait_for, channel.JOIN_SECONDS)
        await self._leader.all_reached("loaded", self._board.wait_for)
        from clotho_trainer.generation import local
        from clotho_trainer.training.local import team

        loop, store = asyncio.get_running_loop(), team.open_store()
        self._leader.order("meet", store.port)

        def announce(task: "Task") -> None:
            loop.call_soon_threadsafe(self._leader.order, task)

        def connect() -> "Team":
            seconds = self._config.stall_after_seconds
            return team.connect(0, self._place.size, store, timeout_seconds=seconds, announce=announce)

        await asyncio.to_thread(lambda: local(backend).join(connect()))

    async def begin(self) -> None:
        await self._leader.all_reached("serving", self._board.wait_for)
        self._leader.order("begin")
        log.info("all %d ranks serve and train", self._place.size)

    async def close(self, end: Termination) -> None:
        await self._leader.close(end)


@asynccontextmanager
async def leading(
    place: Place, config: RunConfig, board: Board, stop: asyncio.Event, host: str
) -> AsyncIterator[Companions]:
    """What rank 0 has around everything else, from the start."""
    if place.size == 1:
        yield Companions()
        return

    def report(missing: tuple[int, ...]) -> None:
        board.update(missing_ranks=missing[:MOST_MISSING])

    leader = Leader(names(config.endpoints.rank_urls, place.size), software(), stop, report)
    async with leader.listening(host, place.port), _ending_together(leader, board):
        try:
            yield Followers(leader, place, config, board)
        except Exception as error:
            await leader.close(classify(error, board.progress.step))
            raise


async def follow(
    place: Place, config: RunConfig, board: Board, data: Path, stop: asyncio.Event, serve: Callable[[Backend], None]
) -> Termination:
    """What every other rank does until rank 0 ends, which ends this process, too."""
    rank_0 = names(config.endpoints.rank_urls, place.size)[0]
    board.wait_for(f"{rank_0} to answer")
    joined: list[Follower] = []

    async def join() -> None:
        hello = Hello(place.rank, place.size, software())
        joined.append(await channel.join(hello, rank_0, place.host, place.port))

    if not await unless_stopped(stop, join()):
        return STOPPED_EARLY
    (follower,) = joined
    async with _ending_together(follower, board), _passing_on(stop, follower):
        try:
            await _Following(follower, place, config, board, rank_0).run(data, serve)
        except Exception as error:
            await follower.close(classify(error, board.progress.step))
            raise


class _Following:
    def __init__(self, follower: Follower, place: Place, config: RunConfig, board: Board, rank_0: str) -> None:
        self._follower = follower
        self._place = place
        self._config = config
        self._board = board
        self._rank_0 = rank_0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="training")

    async def run(self, data: Path, serve: Callable[[Backend], None]) -> NoReturn:
        board, orders = self._board, self._follower.orders
        await orders.get()  # it has joined
        board.wait_for("the model to load")
        backend = await self._in_thread(lambda: self._load(data))
        self._follower.reached("loaded")
        board.wait_for(f"the weights of {self._rank_0}")
        port = (await orders.get()).port
        await self._in_thread(lambda: backend.join(self._connect(port)))
        board.update(step=backend.version, policy_version=backend.version)
        await backend.engine.start()
        board.engine_problem = backend.engine.problem
        serve(backend)
        self._follower.reached("serving")
        board.wait_for("the other ranks to serve")
        await orders.get()
        board.update(registered=True, serving=True)
        rehearsal = asyncio.ensure_future(self._in_thread(backend.rehearse))
        while True:
            board.enter("waiting")
            order = await orders.get()
            await rehearsal
            if order.what == "gather":
                await self._in_thread(backend.follow_gather)
            else:
                await self._step(backend)

    def _load(self, data: Path) -> "LocalBackend":
        """Another seed: ranks that sample the same noise for the same prompt would repeat each other."""
        from clotho_trainer.generation import local

        training = self._config.training
        own = structs.replace(self._config, training=structs.replace(training, seed=training.seed + self._place.rank))
        with loaded_within_memory(self._config.model.name):
            return local(make_backend(own, data, self._place))

    def _connect(self, port: int) -> "Team":
        from clotho_trainer.training.local import team

        seconds = self._config.stall_after_seconds
        store = team.reach_store(self._place.host, port)
        return team.connect(self._place.rank, self._place.size, store, timeout_seconds=seconds)

    async def _step(self, backend: "LocalBackend") -> None:
        try:
            with self._board.stepping("compiling" if backend.compiles else "training"):
                await self._in_thread(backend.follow)
                await backend.engine.publish()
        except TrainerError as error:
            if error.reason != "NonFiniteLoss":
                raise
            log.error("%s", error.message)  # rank 0 has found the same, and ends all ranks
        self._board.update(step=backend.version, policy_version=backend.version)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


@asynccontextmanager
async def _ending_together(connection: Leader | Follower, board: Board) -> AsyncIterator[None]:
    """Leaves the process as soon as it cannot go on without a rank that ended, whatever its threads are in."""

    async def end() -> None:
        ending = await connection.ended
        while board.progress.state == "saving":  # noqa: ASYNC110 - the loop has no event for it
            await asyncio.sleep(0.05)
        await connection.close(ending)
        step = board.progress.step if ending.step is None else ending.step
        leave(structs.replace(ending, step=step, progress=board.progress))

    async with _meanwhile(asyncio.create_task(end())):
        yield


@asynccontextmanager
async def _passing_on(stop: asyncio.Event, follower: Follower) -> AsyncIterator[None]:
    async def pass_on() -> None:
        await stop.wait()
        follower.ask_to_stop()

    async with _meanwhile(asyncio.create_task(pass_on())):
        yield


@asynccontextmanager
async def _meanwhile(task: asyncio.Task[None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
