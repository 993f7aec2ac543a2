"""`python -m clotho_trainer export`: from the command line, or in a pod from the run's file."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge

from clotho_contract import config as run_config
from clotho_contract import exports
from clotho_contract.config import ConfigError
from clotho_contract.exports import ExportOutcome, ExportProgress
from clotho_contract.names import DATA_PATH, DATA_VARIABLE, TRAINER_STATUS_PORT
from clotho_contract.serving import add_health_routes
from clotho_contract.settings import Export, Ollama
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError, classify
from clotho_trainer.training.checkpoints import Checkpoints

log = logging.getLogger(__name__)


class Request(Struct, frozen=True, kw_only=True):
    checkpoint: Path
    output: Path
    settings: Export
    base: str = ""
    status_port: int = 0  # 0 serves nothing


def from_options(options: argparse.Namespace) -> Request:
    """A folder that was named, else what a pod exports."""
    if options.checkpoint is None:
        return from_run(options.config, options.status_port or TRAINER_STATUS_PORT)
    if options.output is None:
        raise ConfigError("name the folder to write into with --output")
    return Request(
        checkpoint=options.checkpoint,
        output=options.output,
        settings=Export(
            formats=tuple(dict.fromkeys(options.format or ["gguf"])),
            quantization=options.quantization,
            ollama=_ollama(options.ollama, options.name),
        ),
        base=options.base,
        status_port=options.status_port,
    )


def _ollama(url: str, name: str) -> Ollama | None:
    if not url and not name:
        return None
    try:
        return msgspec.convert({"url": url, "name": name}, Ollama)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"--ollama {url!r} --name {name!r}: both are needed, a URL such as http://ollama:11434 without credentials "
            "and a name such as team/model:tag"
        ) from error


def from_run(config: Path | None, status_port: int) -> Request:
    """What a pod exports: the newest whole checkpoint of its volume, as set by `export` in the run's file."""
    run = run_config.load(config)
    settings = run.export
    if settings is None:
        raise ConfigError("the run's file has no export; add one, or name a folder with --checkpoint")
    data = Path(os.environ.get(DATA_VARIABLE, str(DATA_PATH)))
    checkpoints = Checkpoints(data / "checkpoints", keep=1, run=run.run.id)
    newest = checkpoints.survey(includes_other_runs=run.continues_other_runs).newest
    if newest is None:
        raise TrainerError("InvalidConfig", f"there is no whole checkpoint in {data / 'checkpoints'}")
    return Request(checkpoint=newest.path, output=data / settings.path, settings=settings, status_port=status_port)


class _Board:
    """The state for `/progress` and the log."""

    def __init__(self) -> None:
        self.progress = ExportProgress(state="reading")
        self.registry = CollectorRegistry()
        self._done = Gauge("clotho_export_done_bytes", "Bytes of the current artifact.", registry=self.registry)

    def report(self, progress: ExportProgress) -> None:
        before, self.progress = self.progress, progress
        self._done.set(progress.done_bytes)
        is_new = (before.state, before.artifact) != (progress.state, progress.artifact)
        if is_new or progress.percent // 10 > before.percent // 10:
            share = f" {progress.percent} %" if progress.total_bytes else ""
            log.info("%s", f"{progress.state} {progress.artifact}".strip() + share)


async def run(options: argparse.Namespace) -> Termination:
    try:
        return await _export(from_options(options))
    except (ConfigError, TrainerError) as error:
        return classify(error, None)


async def _export(request: Request) -> Termination:
    from clotho_trainer.export.run import export

    board = _Board()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with _serving(board, request.status_port):
        stop: asyncio.Future[Any] = asyncio.create_task(stopped.wait())
        work: asyncio.Future[ExportOutcome] = loop.run_in_executor(
            ThreadPoolExecutor(1),  # its own: after a stop it is abandoned
            lambda: export(
                request.checkpoint, request.output, request.settings, base=request.base, report=board.report
            ),
        )
        await asyncio.wait([stop, work], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not work.done():
            return Termination(reason="Stopped", message="stopped; what was finished is kept, the next export goes on")
        if error := work.exception():
            log.debug("the export failed", exc_info=error)
            return classify(error, None)
        outcome = work.result()
    size = f"{outcome.bytes / 1e9:.1f} GB" if outcome.bytes > 1e9 else f"{outcome.bytes / 1e6:.1f} MB"
    registered = f" and registered {outcome.ollama} with Ollama" if outcome.ollama else ""
    return Termination(reason="Finished", message=f"wrote {size} to {outcome.folder}{registered}", export=outcome)


@contextlib.asynccontextmanager
async def _serving(board: _Board, port: int) -> AsyncIterator[None]:
    if not port:
        yield
        return

    async def progress(_: web.Request) -> web.Response:
        return web.Response(body=exports.encode(board.progress), content_type="application/json")

    app = web.Application()
    app.router.add_get("/progress", progress)
    add_health_routes(app, healthy=lambda: None, ready=lambda: None, registry=board.registry)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()
