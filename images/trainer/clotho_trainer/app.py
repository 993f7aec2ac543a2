"""Puts a trainer together and takes it down again: servers first, heavy things while the API server starts."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web

from clotho_contract import config as run_config
from clotho_contract import progress as progress_wire
from clotho_contract.config import RunConfig
from clotho_contract.names import DATA_PATH, DATA_VARIABLE, INFERENCE_PORT, TOKEN_VARIABLE, TRAINER_STATUS_PORT
from clotho_contract.progress import CheckpointInfo, HistorySample
from clotho_contract.serving import add_health_routes
from clotho_contract.termination import Termination
from clotho_trainer import preflight, tracking
from clotho_trainer.api_server import ApiServer
from clotho_trainer.backend import Backend
from clotho_trainer.board import Board
from clotho_trainer.checkpoints import Checkpoints
from clotho_trainer.failures import TrainerError, classify
from clotho_trainer.inference.server import InferenceServer, Service
from clotho_trainer.loop import TrainingLoop
from clotho_trainer.progress_bar import follow
from clotho_trainer.tracking import Tracker

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Options:
    config: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - a pod listens to its peers; both ports of strangers are closed by policy
    inference_port: int = INFERENCE_PORT
    status_port: int = TRAINER_STATUS_PORT


async def train(options: Options) -> Termination:
    """Run to the end, whatever it is, and say which end it was."""
    board: Board | None = None
    try:
        config = run_config.load(options.config)
        preflight.check(config)
        token = _token()
        board = Board(config.training.steps, config.stall_after_seconds)
        async with AsyncExitStack() as stack:
            termination = await _train(config, options, token, board, stack)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        termination = classify(error, board.progress.step if board else None)
        if termination.reason == "InternalError":
            log.exception("%s", termination.message)
    # The operator asks now and then; what came after its last question is only in these words.
    return msgspec.structs.replace(termination, progress=board.progress if board else None)


async def _train(config: RunConfig, options: Options, token: str, board: Board, stack: AsyncExitStack) -> Termination:
    stop = _stop_on_signals()
    inference = InferenceServer(token)
    await stack.enter_async_context(_listening(_status_application(board), options.host, options.status_port))
    await stack.enter_async_context(_listening(inference.application(), options.host, options.inference_port))
    session = await stack.enter_async_context(aiohttp.ClientSession())
    api = ApiServer(session, config.endpoints.api_server, token, config.stall_after_seconds, stop)
    data = Path(os.environ.get(DATA_VARIABLE, str(DATA_PATH)))
    checkpoints = Checkpoints(data / "checkpoints", config.training.checkpoint.keep)
    executor = ThreadPoolExecutor(1, thread_name_prefix="training")

    prepared = await _unless_stopped(stop, _prepare(config, data, api, checkpoints, executor, board))
    if prepared is None:
        return Termination(reason="Stopped", message="stopped before training began", step=board.progress.step)
    backend, tracker = prepared
    await backend.engine.start()
    stack.push_async_callback(backend.engine.stop)
    board.engine_problem = backend.engine.problem
    inference.service = _service(config, backend, board)
    board.update(serving=True, wandb_url=tracker.url)
    board.waiting_for = "the API server to take the registration"
    await api.register(config, str(checkpoints.folder), backend.version)
    if backend.version:
        await api.checkpointed(backend.version)
    board.update(registered=True)
    log.info("registered at step %d of %d", backend.version, config.training.steps)
    loop = TrainingLoop(config, options.config, backend, api, checkpoints, board, tracker, executor)
    exit_code = 1
    try:
        async with follow(board):
            termination = await loop.run(stop)
        exit_code = 0
    finally:
        await asyncio.to_thread(tracker.finish, exit_code)
    return termination


async def _prepare(
    config: RunConfig,
    data: Path,
    api: ApiServer,
    checkpoints: Checkpoints,
    executor: ThreadPoolExecutor,
    board: Board,
) -> tuple[Backend, Tracker]:
    """The slow parts side by side: importing and loading, waiting for the API server, starting the tracker."""

    def load() -> Backend:
        backend = _make_backend(config, data)
        if newest := checkpoints.newest():
            backend.restore(Path(newest.path), newest.step)
            board.saved(newest)
            board.update(step=newest.step, policy_version=newest.step, history=_history(newest))
            log.info("resuming from %s", newest.path)
        return backend

    loading = asyncio.get_running_loop().run_in_executor(executor, load)
    tracker = asyncio.to_thread(tracking.start, config, data / "wandb")
    backend, started, _ = await asyncio.gather(loading, tracker, api.wait_until_up())
    return backend, started


def _make_backend(config: RunConfig, data: Path) -> Backend:
    if config.training.backend == "tinker":
        from clotho_trainer.tinker_backend import TinkerBackend

        return TinkerBackend(config, data)
    _use_one_gpu()
    _quiet_libraries()
    from clotho_trainer import local_backend

    return local_backend.load(config, data)


def _service(config: RunConfig, backend: Backend, board: Board) -> Service:
    return Service(
        engine=backend.engine,
        tokenizer=backend.tokenizer,
        model=config.model.name,
        context=backend.context,
        vocabulary=backend.vocabulary,
        temperature=config.inference.temperature,
        count_tokens=board.sampled_tokens.inc,
    )


def _status_application(board: Board) -> web.Application:
    async def progress(_: web.Request) -> web.Response:
        return web.Response(body=progress_wire.encode(board.progress), content_type="application/json")

    app = web.Application()
    app.router.add_get("/progress", progress)
    add_health_routes(app, healthy=board.healthy, ready=board.ready, registry=board.registry)
    return app


@asynccontextmanager
async def _listening(app: web.Application, host: str, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
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


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[None, None, Result]) -> Result | None:
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _history(checkpoint: CheckpointInfo) -> tuple[HistorySample, ...]:
    summary = json.loads((Path(checkpoint.path) / "training_config.json").read_text())
    return msgspec.convert(summary.get("history", ()), tuple[HistorySample, ...])


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise TrainerError("InvalidConfig", f"${TOKEN_VARIABLE} is not set; it is the token that the run's pods share")
    return token


def _use_one_gpu() -> None:
    """One process trains on one GPU; seeing several would make torch spread over them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    if len(visible) > 1:
        log.warning("%d GPUs are visible and one is used", len(visible))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[0]


def _quiet_libraries() -> None:
    """Their bars and banners would break the one-object-a-line log."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error" if not sys.stdout.isatty() else "warning")
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
