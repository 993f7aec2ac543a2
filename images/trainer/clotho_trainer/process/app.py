"""Puts a trainer together and takes it down again: servers first, heavy things while the API server starts."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from clotho_contract import config as run_config
from clotho_contract.config import RunConfig
from clotho_contract.names import (
    DATA_PATH,
    DATA_VARIABLE,
    ENVIRONMENT_TOKEN_VARIABLE,
    INFERENCE_PORT,
    OPERATOR_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    TRAINER_STATUS_PORT,
)
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError, classify
from clotho_trainer.inference.server import InferenceServer
from clotho_trainer.inference.service import Service
from clotho_trainer.process import preflight
from clotho_trainer.process.status_server import status_application
from clotho_trainer.process.step_target import StepTarget
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


async def train(options: Options) -> Termination:
    """Run to the end and return how it ended."""
    board: Board | None = None
    try:
        config = preflight.checked(run_config.load(options.config))
        token = _token(config)
        board = Board(config.training.steps, config.stall_after_seconds, rows=config.inference.max_batch_size)
        async with AsyncExitStack() as stack:
            termination = await _train(config, options, token, board, stack)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        termination = classify(error, board.progress.step if board else None)
        if termination.reason == "InternalError":
            log.exception("%s", termination.message)
    # The operator polls /progress; what came after its last poll is only in the termination message.
    return msgspec.structs.replace(termination, progress=board.progress if board else None)


async def _train(config: RunConfig, options: Options, token: str, board: Board, stack: AsyncExitStack) -> Termination:
    stop = _stop_on_signals()
    served_to = inference_tokens(token)
    inference = InferenceServer(*served_to)
    target = StepTarget(config.training.steps, lambda: run_config.load(options.config))
    status = status_application(board, os.environ.get(OPERATOR_TOKEN_VARIABLE) or token, target.set)
    await stack.enter_async_context(listening(status, options.host, options.status_port))
    if served_to:
        await stack.enter_async_context(listening(inference.application(), options.host, options.inference_port))
    data = Path(os.environ.get(DATA_VARIABLE, str(DATA_PATH)))
    checkpoints = Checkpoints(data / "checkpoints", config.training.checkpoint.keep, config.run.id)
    source = await _source(config, token, checkpoints, stop, stack)
    training = Training(config, target, source, checkpoints, board, data)

    async def load() -> None:
        await stack.enter_async_context(volume_lock.held(data, config.run, board.wait_for))
        board.wait_for("the model to load")
        await training.load()

    if not await _unless_stopped(stop, load()):
        return Termination(reason="Stopped", message="stopped before training began", step=board.progress.step)
    stack.push_async_callback(training.close)
    inference.service = _service(config, training.backend, board)
    board.update(serving=True)
    return await training.run(stop)


async def _source(
    config: RunConfig, token: str, checkpoints: Checkpoints, stop: asyncio.Event, stack: AsyncExitStack
) -> Source:
    if config.inline is not None:
        from clotho_trainer.rollouts.inline.source import InlineSource

        return InlineSource(config, config.inline)
    session = await stack.enter_async_context(aiohttp.ClientSession())
    api = ApiServer(session, config.endpoints.api_server, token, config.stall_after_seconds, stop)
    return LeaseSource(api, config, str(checkpoints.folder))


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


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Whether the work was done before the stop came."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return working.done()
    finally:
        working.cancel()
        stopping.cancel()


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


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
