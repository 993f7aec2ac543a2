"""The end of a run's object: its pods where a finalizer holds it, and an empty claim after it is gone."""

from collections.abc import Iterable, Mapping
from typing import Final

from clotho.api.names import API_SERVER, ENVIRONMENT, EXPORTER, INFERENCE, TRAINER
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.model import Delete, ObjectKey, ObjectSeen, Observed, Plan, delete_pod
from clotho.plan.run.stop import grace_of
from clotho.render.names import claim_name

_ORPHAN: Final = "orphan"  # `kubectl delete --cascade=orphan`: the pods are to stay
_ORDER: Final = (
    (ENVIRONMENT, False),
    (INFERENCE, False),
    (TRAINER, False),
    (TRAINER, True),
    (EXPORTER, False),
    (API_SERVER, False),
)


def plan_deletion(run: TrainingRun | UnreadableRun, observed: Observed) -> Plan[TrainingRunStatus]:
    """A finalizer holds the run: its pods end in the order of a stop, so that the trainer can save a checkpoint."""
    if _ORPHAN in run.metadata.finalizers:
        return Plan()
    for component, is_follower in _ORDER:
        kind = [pod for pod in observed.pods if pod.component == component and pod.is_follower == is_follower]
        if stage := [pod for pod in kind if not pod.is_gone]:
            return Plan(actions=tuple(delete_pod(pod, grace_of(pod)) for pod in stage if not pod.is_terminating))
    return Plan()


def plan_removal(
    run: TrainingRun | UnreadableRun, objects: Mapping[ObjectKey, ObjectSeen], others: Iterable[TrainingRun]
) -> tuple[Delete, ...]:
    """The run is gone. A claim that never got a checkpoint is deleted too, unless another run names it."""
    key = ObjectKey("PersistentVolumeClaim", claim_name(run.metadata, TRAINER))
    claim = objects.get(key)
    if claim is None or claim.is_terminating or isinstance(run, UnreadableRun) or _ORPHAN in run.metadata.finalizers:
        return ()
    if _may_have_checkpoint(run.status) or any(other.spec.storage.claim_name == key.name for other in others):
        return ()
    return (Delete(key=key, uid=claim.uid, resource_version=claim.resource_version),)


def _may_have_checkpoint(status: TrainingRunStatus) -> bool:
    """A trainer that has taken a step saves it when its pod is terminated."""
    is_training = not status.is_finished and status.progress is not None and status.progress.step > 0
    return status.checkpoint is not None or is_training
