"""Suspended is not an end: once `suspend` is taken back, the run starts again from its checkpoint."""

import msgspec

from clotho.api.training_run import TrainingRun
from clotho.plan.run.situation import Decision, Situation


def resumed(run: TrainingRun) -> TrainingRun:
    """A resumed run keeps its progress and its record, and starts its clocks anew."""
    if run.status.phase != "Suspended" or run.spec.suspend or run.spec.stop:
        return run
    fresh = msgspec.structs.replace(run.status, phase="Pending", start_time=None, running_time=None)
    return msgspec.structs.replace(run, status=fresh)


def wait_for_last_pods(situation: Situation) -> Decision | None:
    """Pods of the last attempt that ended in order may still hold their names. The run has not started again as long as
    they do: in one that has, a pod that disappears is a loss."""
    status = situation.run.status
    left = [component for component in situation.components if any(pod.is_gone for pod in component.pods)]
    if status.phase != "Pending" or not status.attempt or not left:
        return None
    titles = ", ".join(component.title for component in left)
    return Decision(
        phase="Pending",
        reason="WaitingForLastPods",
        message=f"Waiting until the pods of the last attempt are gone: {titles}.",
        components=situation.components,
    )
