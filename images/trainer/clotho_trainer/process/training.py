"""One training from loading to the last words, whoever asked for it: a pod, or a person in Python."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from clotho_contract.config import RunConfig
from clotho_contract.progress import HistorySample
from clotho_contract.termination import Termination
from clotho_trainer.hardware import gpus
from clotho_trainer.reporting import tracking
from clotho_trainer.reporting.board import Board
from clotho_trainer.reporting.progress_bar import follow
from clotho_trainer.reporting.tracking import Tracker
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.checkpoints import Checkpoints
from clotho_trainer.training.loop import TrainingLoop
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
        reload: Callable[[], RunConfig],
        source: Source,
        checkpoints: Checkpoints,
        board: Board,
        data: Path,
    ) -> None:
        self._config = config
        self._reload = reload
        self._source = source
        self._checkpoints = checkpoints
        self._board = board
        self._data = data
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="training")
        self._source_state: dict[str, Any] = {}
        self.backend: Backend
        self._tracker: Tracker

    async def load(self) -> None:
        """The slow parts side by side: importing and loading, what the source waits for, starting the tracker."""
        loading = asyncio.get_running_loop().run_in_executor(self._executor, self._load_backend)
        tracker = asyncio.to_thread(tracking.start, self._config, self._data / "wandb")
        self.backend, self._tracker, _ = await asyncio.gather(loading, tracker, self._source.prepare())
        await self.backend.engine.start()
        self._board.engine_problem = self.backend.engine.problem
        self._board.update(wandb_url=self._tracker.url)

    async def run(self, stop: asyncio.Event, *, shows_bar: bool = False) -> Termination:
        """The bar is there on a terminal anyway."""
        exit_code = 1
        try:
            self._board.waiting_for = self._source.opening
            await self._source.open(self.backend, self._source_state)
            self._board.update(registered=True)
            log.info("training begins at step %d", self.backend.version)
            loop = TrainingLoop(
                self._config,
                self._reload,
                self.backend,
                self._source,
                self._checkpoints,
                self._board,
                self._tracker,
                self._executor,
            )
            async with follow(self._board, shows_bar or sys.stdout.isatty()):
                termination = await loop.run(stop)
            exit_code = 0
        finally:
            await asyncio.to_thread(self._tracker.finish, exit_code)
        return termination

    async def close(self) -> None:
        await self.backend.engine.stop()

    def _load_backend(self) -> Backend:
        backend = _make_backend(self._config, self._data)
        if newest := self._checkpoints.newest():
            summary = json.loads((Path(newest.path) / "training_config.json").read_text())
            known = msgspec.convert(summary, _Summary)
            backend.restore(Path(newest.path), newest.step)
            self._source_state = known.source
            self._board.saved(newest)
            self._board.update(step=newest.step, policy_version=newest.step, history=known.history)
            log.info("resuming from %s", newest.path)
        return backend


def _make_backend(config: RunConfig, data: Path) -> Backend:
    if config.training.backend == "tinker":
        from clotho_trainer.training.tinker import TinkerBackend

        return TinkerBackend(config, data)
    gpus.train_on_first()
    _quiet_libraries()
    from clotho_trainer.training.local import backend as local_backend

    return local_backend.load_backend(config, data)


def _quiet_libraries() -> None:
    """Their bars and banners would break the one-object-a-line log."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error" if not sys.stdout.isatty() else "warning")
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
