"""The trackers that a run asks for."""

import logging
from pathlib import Path

from clotho_contract.config import RunConfig
from clotho_trainer.reporting import weights_and_biases
from clotho_trainer.reporting.tensorboard import TensorBoardTracker
from clotho_trainer.reporting.tracking import Several, Tracker

log = logging.getLogger(__name__)


def start(config: RunConfig, data: Path) -> Tracker:
    """Their files are on the volume. One that cannot be started is left out."""
    found = (weights_and_biases.start(config, data / "wandb"), _tensorboard(config, data / "tensorboard"))
    return Several([each for each in found if each is not None])


def _tensorboard(config: RunConfig, folder: Path) -> Tracker | None:
    if not config.tensorboard:
        return None
    try:
        return TensorBoardTracker(folder)
    except OSError as error:
        log.warning("TensorBoard's files cannot be written to %s: %s", folder, error)
        return None
