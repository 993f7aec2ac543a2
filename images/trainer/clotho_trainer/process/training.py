"""One training from loading to its termination message, in a pod or from Python."""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from clotho_contract.config import RunConfig
from clotho_contract.progress import HistorySample
from clotho_contract.termination import Termination
from clotho_trainer.failures import is_out_of_memory, model_too_large
from clotho_trainer.hardware import gpus
from clotho_trainer.model.licence import base_licence
from clotho_trainer.process.place import ALONE, Place
from clotho_trainer.reporting import trackers
from clotho_trainer.reporting.board import Board
from clotho_trainer.reporting.history import FILE, Recorder
from clotho_trainer.reporting.progress_bar import follow
from clotho_trainer.reporting.tracking import Tracker
from clotho_trainer.training import bucket
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.checkpoints import SUMMARY, Checkpoints
from clotho_trainer.training.copying import Copier, Copies, NoCopies
from clotho_trainer.training.loop import TrainingLoop
from clotho_trainer.training.resume import starting_point
from clotho_trainer.training.source import Source

log = logging.getLogger(__name__)


class _Summary(msgspec.Struct):
    """The part of a checkpoint's `training_config.json` that a resumed run needs."""

    history: tuple[HistorySample, ...] = ()
    source: dict[str, Any] = {}


class Training:
    def __init__(
        self,
        config: RunConfig,
        wanted_steps: Callable[[], int],
        source: Source,
        checkpoints: Checkpoints,
        board: Board,
        data: Path,
        meet: Callable[[Backend], Awaitable[None]] | None = None,
    ) -> None:
        """`meet` is awaited between loading the weights and serving them."""
        self._config = config
        self._wanted_steps = wanted_steps
        self._source = source
        self._checkpoints = checkpoints
        self._board = board
        self._data = data
        self._meet = meet
        board.recorder = Recorder(data / FILE, config.run.id)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="training")
        self._source_state: dict[str, Any] = {}
        self._base_licence = ""
        self.backend: Backend
        self._tracker: Tracker

    async def load(self) -> None:
        with loaded_within_memory(self._config.model.name):
            await self._load()

    async def _load(self) -> None:
        """The slow parts side by side: importing and loading, what the source waits for, starting the tracker."""
        loading = asyncio.get_running_loop().run_in_executor(self._executor, self._load_backend)
        tracker = asyncio.to_thread(trackers.start, self._config, self._data)
        self.backend, self._tracker, _ = await asyncio.gather(loading, tracker, self._source.prepare())
        if self._meet is not None:
            await self._meet(self.backend)
        await self.backend.engine.start()
        self._board.recorder.samples.decode = self.backend.decode
        self._board.engine_problem = self.backend.engine.problem
        self._board.update(wandb_url=self._tracker.url, engine=self.backend.engine.name)

    async def run(self, stop: asyncio.Event, *, shows_bar: bool = False) -> Termination:
        """The bar is there on a terminal anyway."""
        exit_code = 1
        try:
            self._board.wait_for(self._source.opening)
            await self._source.open(self.backend, self._source_state)
            self._board.update(registered=True)
            log.info("training begins at step %d", self.backend.version)
            loop = TrainingLoop(
                self._config,
                self._wanted_steps,
                self.backend,
                self._source,
                self._checkpoints,
                self._board,
                self._tracker,
                self._executor,
            )
            loop.copies = self._copier()
            loop.base_licence = self._base_licence
            async with follow(self._board, shows_bar or sys.stdout.isatty()):
                termination = await loop.run(stop)
            exit_code = 0
        finally:
            await asyncio.to_thread(self._tracker.finish, exit_code)
        return termination

    def _copier(self) -> Copies:
        target = bucket.own_bucket(self._config)
        if target is None:
            return NoCopies()
        return Copier(target, self._checkpoints, lambda info: self._board.update(copies=info))

    async def close(self) -> None:
        await self.backend.engine.stop()

    def _load_backend(self) -> Backend:
        bucket.restore(self._config, self._checkpoints.folder, has_own=bool(self._checkpoints.own()))
        start = starting_point(self._checkpoints, self._config)  # before minutes of loading
        backend = make_backend(self._config, self._data)
        self._base_licence = base_licence(self._config.model)
        if start is not None:
            known = msgspec.json.decode((start.path / SUMMARY).read_bytes(), type=_Summary)
            backend.restore(start.path, start.step)
            self._source_state = known.source
            self._board.saved(start.info)
            self._board.recorder.resume(start.step)
            self._board.update(step=start.step, policy_version=start.step, history=known.history)
            log.info("resuming from %s", start.path)
        return backend


@contextmanager
def loaded_within_memory(model: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise model_too_large(model, error) from error


def make_backend(config: RunConfig, data: Path, place: Place = ALONE) -> Backend:
    if config.training.backend == "tinker":
        from clotho_trainer.training.tinker import TinkerBackend

        return TinkerBackend(config, data)
    gpus.train_on(place.local_rank)
    quiet_libraries()
    from clotho_trainer.training.local import backend as local_backend

    return local_backend.load_backend(config, data, place.rank)


def quiet_libraries() -> None:
    """Their bars and banners would break the one-object-a-line log."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error" if not sys.stdout.isatty() else "warning")
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
