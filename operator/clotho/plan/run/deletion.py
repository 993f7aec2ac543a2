"""A run that is being deleted and still there: somebody's finalizer holds it. Its pods end all the same."""

from typing import Final

from clotho.api.names import API_SERVER, ENVIRONMENT, EXPORTER, TRAINER
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.model import Observed, Plan, delete_pod

_ORPHAN: Final = "orphan"  # `kubectl delete --cascade=orphan`: the pods are to stay
_ORDER: Final = (ENVIRONMENT, TRAINER, EXPORTER, API_SERVER)


def plan_deletion(run: TrainingRun | UnreadableRun, observed: Observed) -> Plan[TrainingRunStatus]:
    """In the order of a stop, so that the trainer can save its last checkpoint."""
    if _ORPHAN in run.metadata.finalizers:
        return Plan()
    for component in _ORDER:
        stage = [pod for pod in observed.pods if pod.component == component and not pod.is_gone]
        if stage:
            return Plan(actions=tuple(delete_pod(pod) for pod in stage if not pod.is_terminating))
    return Plan()
