"""Which checkpoint a run starts from. A run never starts at step 1 in silence when it has trained before."""

from clotho_contract.config import RunConfig
from clotho_trainer.failures import TrainerError
from clotho_trainer.training.checkpoints import Checkpoints, Saved


def starting_point(checkpoints: Checkpoints, config: RunConfig) -> Saved | None:
    """None starts at step 1."""
    survey = checkpoints.survey(includes_other_runs=config.continues_other_runs)
    newest, steps = survey.newest, config.training.steps
    if newest is None and survey.damaged and config.training.checkpoint.on_damage == "Fail":
        raise TrainerError(
            "CheckpointsDamaged",
            f"no checkpoint in {checkpoints.folder} can be read ({survey.damaged[0]}); restore one from a backup, or "
            "train again from step 1 with training.checkpoint.onDamage: StartOver",
        )
    if newest is not None and newest.run != checkpoints.run and newest.step >= steps:
        raise TrainerError(
            "InvalidConfig",
            f"the volume holds step {newest.step} of run {newest.run}, and training.steps is {steps}: nothing is left "
            "to train; raise training.steps or use another claim",
        )
    return newest
