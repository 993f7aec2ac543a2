"""Suspended is not an end: once `suspend` is taken back, the run starts again from its checkpoint."""

from collections.abc import Iterable

import msgspec

from clotho.api.training_run import TrainingRun
from clotho.plan.pods import Pod
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.run.stop import stop_pods


def resumed(run: TrainingRun, pods: Iterable[Pod]) -> TrainingRun:
    """A resumed run keeps its progress and its record, and starts its clocks anew."""
    is_down = run.status.phase == "Suspended" or (run.status.phase == "Stopping" and all(pod.is_gone for pod in pods))
    if not is_down or run.spec.suspend or run.spec.stop:
        return run
    fresh = msgspec.structs.replace(run.status, phase="Pending", start_time=None, running_time=None)
    return msgspec.structs.replace(run, status=fresh)


def wait_for_last_pods(situation: Situation) -> Decision | None:
    """A stop that has begun is completed, also where `suspend` was taken back meanwhile. Pods that have ended may hold
    their names a little longer; once a run has started again, a pod that disappears is a loss."""
    status = situation.run.status
    if status.phase == "Stopping" and (stopping := stop_pods(situation)):
        return msgspec.structs.replace(stopping, message=f"{stopping.message} Then the run is resumed.")
    left = [component for component in situation.components if any(pod.is_terminating for pod in component.pods)]
    if status.phase != "Pending" or not status.attempt or not left:
        return None
    titles = ", ".join(component.title for component in left)
    return Decision(
        phase="Pending",
        reason="WaitingForLastPods",
        message=f"Waiting until the pods of the last attempt are gone: {titles}.",
        components=situation.components,
    )
