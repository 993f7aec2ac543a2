"""A run that is being deleted and still there: somebody's finalizer holds it. Its pods end all the same."""

from typing import Final

from clotho.api.names import API_SERVER, ENVIRONMENT, EXPORTER, TRAINER
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.model import Observed, Plan, delete_pod
from clotho.plan.run.stop import grace_of

_ORPHAN: Final = "orphan"  # `kubectl delete --cascade=orphan`: the pods are to stay
_ORDER: Final = ((ENVIRONMENT, False), (TRAINER, False), (TRAINER, True), (EXPORTER, False), (API_SERVER, False))


def plan_deletion(run: TrainingRun | UnreadableRun, observed: Observed) -> Plan[TrainingRunStatus]:
    """In the order of a stop, so that the trainer can save its last checkpoint."""
    if _ORPHAN in run.metadata.finalizers:
        return Plan()
    for component, is_follower in _ORDER:
        kind = [pod for pod in observed.pods if pod.component == component and pod.is_follower == is_follower]
        if stage := [pod for pod in kind if not pod.is_gone]:
            return Plan(actions=tuple(delete_pod(pod, grace_of(pod)) for pod in stage if not pod.is_terminating))
    return Plan()
