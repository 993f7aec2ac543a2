"""Suspended is not an end: once `suspend` is taken back, the run starts again from its checkpoint."""

import msgspec

from clotho.api.training_run import TrainingRun


def resumed(run: TrainingRun) -> TrainingRun:
    """A resumed run keeps its progress and its record, and starts its clocks anew."""
    if run.status.phase != "Suspended" or run.spec.suspend or run.spec.stop:
        return run
    fresh = msgspec.structs.replace(run.status, phase="Pending", start_time=None, running_time=None)
    return msgspec.structs.replace(run, status=fresh)
