"""deadlineSeconds: how long a run may take from its start, or from its last resumption."""

from datetime import datetime

from clotho.api.training_run import TrainingRun
from clotho.plan.situation import later


def deadline_of(run: TrainingRun) -> datetime | None:
    if run.spec.deadline_seconds is None or run.status.start_time is None:
        return None
    return later(run.status.start_time, run.spec.deadline_seconds)


def deadline_message(run: TrainingRun) -> str:
    step = run.status.progress.step if run.status.progress else 0
    return (
        f"The run was not complete within deadlineSeconds ({run.spec.deadline_seconds}): "
        f"it reached step {step} of {run.spec.training.steps}."
    )
