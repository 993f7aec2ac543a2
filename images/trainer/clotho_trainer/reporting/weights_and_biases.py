"""Weights & Biases: figures and sample completions of every step. Failures there never stop a run."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clotho_contract.config import RunConfig
from clotho_contract.history import Evaluation
from clotho_contract.settings import Wandb
from clotho_trainer.reporting.tracking import Sample, Tracker, evaluated

log = logging.getLogger(__name__)

_KEY = "WANDB_API_KEY"
_START_SECONDS = 60
_SAMPLES_EVERY = 10  # steps


class WandbTracker:
    def __init__(self, run: Any) -> None:
        self._run = run
        self.url: str | None = run.url or None
        run.define_metric("step")
        run.define_metric("*", step_metric="step")  # a resumed run may log a step again

    def wants_samples(self, step: int) -> bool:
        return step % _SAMPLES_EVERY == 1

    def log(self, step: int, figures: Mapping[str, float], samples: Sequence[Sample]) -> None:
        """The samples after the figures: a table needs more rights and more requests than a number."""
        self._log(step, lambda: figures)
        if samples:
            self._log(step, lambda: {"completions": _table(step, samples)})

    def _log(self, step: int, entry: Callable[[], Mapping[str, Any]]) -> None:
        try:
            self._run.log({**entry(), "step": step})
        except Exception as error:
            log.warning("Weights & Biases did not take step %d: %s", step, error)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        self.log(evaluation.step, evaluated(evaluation), ())

    def finish(self, exit_code: int) -> None:
        try:
            self._run.finish(exit_code=exit_code)
        except Exception as error:
            log.warning("Weights & Biases could not be closed: %s", error)


def _table(step: int, samples: Sequence[Sample]) -> Any:
    import wandb

    return wandb.Table(columns=["step", "prompt", "completion", "score"], data=[[step, *each] for each in samples])


def start(config: RunConfig, folder: Path) -> Tracker | None:
    """Falls back to offline files where the service cannot be reached."""
    if config.wandb is None or config.wandb.mode == "disabled":
        return None
    mode = config.wandb.mode
    if mode == "online" and not os.environ.get(_KEY):
        log.warning("tracking.wandb: %s is not set, so the run is tracked offline in %s", _KEY, folder)
        mode = "offline"
    for attempt in (mode, "offline") if mode == "online" else (mode,):
        try:
            return WandbTracker(_start(config, config.wandb, folder, attempt))
        except Exception as error:
            log.warning("Weights & Biases (%s) could not be started: %s", attempt, error)
    return None


def _start(config: RunConfig, settings: Wandb, folder: Path, mode: str) -> Any:
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    first = config.environments[0].name if config.environments else config.run.name
    return wandb.init(
        project=settings.project,
        entity=settings.entity or None,
        group=config.run.id,
        name=settings.name or f"{first}-{config.run.id}",
        id=config.run.id,
        resume="allow",
        mode=mode,  # type: ignore[arg-type, unused-ignore]
        dir=str(folder),
        config=msgspec.to_builtins(config),
        settings=wandb.Settings(init_timeout=_START_SECONDS, silent=True, disable_git=True, save_code=False),
    )
