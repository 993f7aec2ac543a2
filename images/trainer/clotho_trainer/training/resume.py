"""Which checkpoint a run starts from. A run never starts at step 1 in silence when it has trained before."""

import logging

from clotho_contract.config import RunConfig
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.checkpoints import Checkpoints, Saved, Survey

log = logging.getLogger(__name__)


def starting_point(checkpoints: Checkpoints, config: RunConfig) -> Saved | None:
    """None starts at step 1."""
    survey = checkpoints.survey(includes_other_runs=config.continues_other_runs)
    newest, steps = survey.newest, config.training.steps
    problem = _loss(checkpoints, survey) if newest is None else ""
    if problem and config.training.checkpoint.on_damage == "Fail":
        raise TrainerError(
            "CheckpointsDamaged",
            f"{problem}; restore one from a backup, or train again from step 1 with "
            "training.checkpoint.onDamage: StartOver",
        )
    if problem:
        log.warning("%s: training starts again at step 1", problem)
    if newest is not None and newest.run != checkpoints.run and newest.step >= steps:
        raise TrainerError(
            "InvalidConfig",
            f"the volume holds step {newest.step} of run {newest.run}, and training.steps is {steps}: nothing is left "
            "to train; raise training.steps or use another claim",
        )
    return newest


def _loss(checkpoints: Checkpoints, survey: Survey) -> str:
    """Of a run that has no checkpoint to start from, why it should have one; empty for a new run."""
    if survey.damaged:
        return f"no checkpoint in {checkpoints.folder} can be read ({survey.damaged[0]})"
    if checkpoints.known_step:
        return f"the run has written a checkpoint of step {checkpoints.known_step}, and {checkpoints.folder} has none"
    return ""
