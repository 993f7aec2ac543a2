"""Puts a trainer together and takes it down again: servers first, heavy things while the API server starts."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from msgspec import structs

from clotho_contract import config as run_config
from clotho_contract.config import RunConfig
from clotho_contract.history import LOG_KEY
from clotho_contract.names import (
    CHECKPOINT_STEP_VARIABLE,
    DATA_PATH,
    DATA_VARIABLE,
    ENVIRONMENT_TOKEN_VARIABLE,
    INFERENCE_PORT,
    INFERENCE_TOKEN_VARIABLE,
    OPERATOR_TOKEN_VARIABLE,
    POLICY_PORT,
    TOKEN_VARIABLE,
    TRAINER_STATUS_PORT,
)
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError, classify
from clotho_trainer.inference.server import InferenceServer
from clotho_trainer.inference.service import Service
from clotho_trainer.process import preflight, ranks
from clotho_trainer.process.place import ALONE, Place
from clotho_trainer.process.policy_server import PolicyServer
from clotho_trainer.process.status_server import status_application
from clotho_trainer.process.step_target import StepTarget
from clotho_trainer.process.stopping import STOPPED_EARLY, stop_on_signals, unless_stopped
from clotho_trainer.process.training import Training
from clotho_trainer.reporting.board import Board
from clotho_trainer.rollouts.api_server import ApiServer
from clotho_trainer.rollouts.leases import LeaseSource
from clotho_trainer.training import volume_lock
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.checkpoints import Checkpoints
from clotho_trainer.training.source import Source

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    config: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - other pods connect; NetworkPolicy decides which
    inference_port: int = INFERENCE_PORT
    status_port: int = TRAINER_STATUS_PORT
    policy_port: int = POLICY_PORT
    place: Place = ALONE


async def train(options: Options) -> Termination:
    """Run to the end and return how it ended."""
    board: Board | None = None
    try:
        config = preflight.checked(run_config.load(options.config), ranks=options.place.size)
        token = _token(config)
        board = _board(config, options.place.size)
        async with AsyncExitStack() as stack:
            data = Path(os.environ.get(DATA_VARIABLE, str(DATA_PATH)))
            inference = InferenceServer(*inference_tokens(token))
            rank = _Rank(config, options, token, board, stack, data, stop_on_signals(), inference)
            termination = await rank.run()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        termination = classify(error, board.progress.step if board else None)
        if termination.reason == "InternalError":
            log.exception("%s", termination.message)
    if board is not None and (history := board.recorder.history()).series.steps:
        # The operator may not come any more, and an answer that was sent may not have arrived.
        log.info("history of the training", extra={LOG_KEY: msgspec.to_builtins(history)})
    # The operator polls /progress; what came after its last poll is only in the termination message.
    return structs.replace(termination, progress=board.progress if board else None)


@dataclass
class _Rank:
    """This process, between its config and its termination message."""

    config: RunConfig
    options: Options
    token: str
    board: Board
    stack: AsyncExitStack
    data: Path
    stop: asyncio.Event
    inference: InferenceServer

    async def run(self) -> Termination:
        config, options, place = self.config, self.options, self.options.place
        target = StepTarget(config.training.steps, lambda: run_config.load(options.config))
        if place.local_rank == 0:  # one status for the pod
            token = os.environ.get(OPERATOR_TOKEN_VARIABLE) or self.token
            status = status_application(self.board, token, target.set)
            await self.stack.enter_async_context(listening(status, options.host, options.status_port))
        if self.inference.is_open:
            application = self.inference.application()
            await self.stack.enter_async_context(listening(application, options.host, options.inference_port))
        if place.rank:
            return await ranks.follow(place, config, self.board, self.data, self.stop, self._serve)
        return await self._lead(target)

    async def _lead(self, target: StepTarget) -> Termination:
        config, board, stack = self.config, self.board, self.stack
        leading = ranks.leading(self.options.place, config, board, self.stop, self.options.host)
        companions = await stack.enter_async_context(leading)
        keep, known_step = config.training.checkpoint.keep, _known_step()
        checkpoints = Checkpoints(self.data / "checkpoints", keep, config.run.id, known_step)
        source = await _source(config, self.token, checkpoints, self.stop, stack)
        publish = await self._policy_publisher()
        training = Training(config, target, source, checkpoints, board, self.data, companions.meet)

        async def load() -> None:
            await stack.enter_async_context(volume_lock.held(self.data, config.run, board.wait_for))
            board.wait_for("the model to load")
            await training.load()
            self._serve(training.backend)
            publish(training.backend)
            board.on_report = lambda *_: publish(training.backend)
            await companions.begin()
            board.update(serving=True)

        if await unless_stopped(self.stop, load()):
            stack.push_async_callback(training.close)
            end = await training.run(self.stop)
        else:
            end = structs.replace(STOPPED_EARLY, step=board.progress.step)
        await companions.close(end)
        return end

    async def _policy_publisher(self) -> Callable[[Backend], None]:
        """For inference replicas, which have a token of their own where a run may have any."""
        token = os.environ.get(INFERENCE_TOKEN_VARIABLE, "")
        if not token or self.config.training.backend == "tinker":
            return lambda _: None
        server = PolicyServer(token, self.board.waiting.count_replica)
        port = listening(server.application(), self.options.host, self.options.policy_port)
        await self.stack.enter_async_context(port)
        return server.publish

    def _serve(self, backend: Backend) -> None:
        self.inference.service = _service(self.config, backend, self.board)


async def _source(
    config: RunConfig, token: str, checkpoints: Checkpoints, stop: asyncio.Event, stack: AsyncExitStack
) -> Source:
    if config.inline is not None:
        from clotho_trainer.rollouts.inline.source import InlineSource

        return InlineSource(config, config.inline)
    session = await stack.enter_async_context(aiohttp.ClientSession())
    api = ApiServer(session, config.endpoints.api_server, token, config.stall_after_seconds, stop)
    return LeaseSource(api, config, str(checkpoints.folder))


def _board(config: RunConfig, size: int) -> Board:
    serving = config.endpoints.serving_ranks
    ranks = size if serving is None else serving
    rows = config.decoded_together
    return Board(config.training.steps, config.stall_after_seconds, rows=rows, ranks=ranks)


def _service(config: RunConfig, backend: Backend, board: Board) -> Service:
    return Service(
        engine=backend.engine,
        tokenizer=backend.tokenizer,
        model=config.model.name,
        context=backend.context,
        vocabulary=backend.vocabulary,
        temperature=config.inference.temperature,
        count_tokens=board.sampled_tokens.inc,
        count_sequences=board.waiting.count_sequences,
    )


@asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise TrainerError("InvalidConfig", f"cannot listen on port {port}: {error.strerror}") from error
    try:
        yield
    finally:
        await runner.cleanup()


def inference_tokens(own: str) -> tuple[str, ...]:
    """Those of the environments and the operator; where neither is set, the one that all pods share."""
    roles = (ENVIRONMENT_TOKEN_VARIABLE, OPERATOR_TOKEN_VARIABLE)
    accepted = tuple(filter(None, (os.environ.get(variable) for variable in roles)))
    return accepted or ((own,) if own else ())


def _token(config: RunConfig) -> str:
    """For the API server, which a run without environments does not have."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token and config.inline is None:
        raise TrainerError("InvalidConfig", f"${TOKEN_VARIABLE} is not set; it is the token for the API server")
    return token


def _known_step() -> int:
    text = os.environ.get(CHECKPOINT_STEP_VARIABLE, "")
    return int(text) if text.isdecimal() else 0
