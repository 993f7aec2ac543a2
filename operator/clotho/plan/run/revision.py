"""A run whose spec changes before its trainer has started: every field may, so nothing of the earlier spec is kept."""

import msgspec

from clotho.api.training_run import TrainingRun
from clotho.plan.pods import Pod


def is_revised(run: TrainingRun) -> bool:
    """Its spec has changed since its status was written, and no trainer has started by then."""
    status = run.status
    return not status.attempt and not status.is_finished and 0 <= status.observed_generation < run.metadata.generation


def revised(run: TrainingRun) -> TrainingRun:
    """Environments are looked up again, and the present policies apply."""
    if not is_revised(run):
        return run
    return msgspec.structs.replace(run, status=msgspec.structs.replace(run.status, resolved=(), policy=None))


def is_outdated(run: TrainingRun, pod: Pod) -> bool:
    """Made from an earlier spec, of which the status records no trainer: the change came in between."""
    return not run.status.attempt and 0 < pod.generation < run.metadata.generation
