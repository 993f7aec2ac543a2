"""deadlineSeconds: how long a run may take from its start, or from its last resumption."""

from datetime import datetime

from clotho.api.training_run import TrainingRun
from clotho.plan.run.progress import run_progress
from clotho.plan.run.situation import Situation
from clotho.plan.times import later


def deadline_of(run: TrainingRun) -> datetime | None:
    if run.spec.deadline_seconds is None or run.status.start_time is None:
        return None
    return later(run.status.start_time, run.spec.deadline_seconds)


def deadline_message(situation: Situation) -> str:
    spec, progress = situation.run.spec, run_progress(situation)
    return (
        f"The run was not complete within deadlineSeconds ({spec.deadline_seconds}): "
        f"it reached step {progress.step if progress else 0} of {situation.total_steps}."
    )
