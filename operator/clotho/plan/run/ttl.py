"""ttlSecondsAfterFinished: a finished run deletes itself, and its objects follow their owner."""

from datetime import datetime

from clotho.api.names import KIND
from clotho.api.training_run import TrainingRun
from clotho.plan.model import Delete, ObjectKey
from clotho.plan.times import later


def expiry_of(run: TrainingRun) -> datetime | None:
    if run.spec.ttl_seconds_after_finished is None or run.status.completion_time is None:
        return None
    return later(run.status.completion_time, run.spec.ttl_seconds_after_finished)


def delete_run(run: TrainingRun) -> Delete:
    metadata = run.metadata
    return Delete(key=ObjectKey(KIND, metadata.name), uid=metadata.uid, resource_version=metadata.resource_version)
