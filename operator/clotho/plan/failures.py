"""Why a pod ended: whose fault it was, and whether trying again can help."""

from typing import Final

from msgspec import Struct

from clotho.api.names import ENVIRONMENT
from clotho.plan.pods import ContainerStatus, Pod, Terminated
from clotho_contract import termination
from clotho_contract.termination import Termination

_DISRUPTIONS: Final = {
    "PreemptionByScheduler": "Preempted",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
}
_INFRASTRUCTURE: Final = {
    "Evicted": "Evicted",
    "Preempting": "Preempted",
    "NodeLost": "NodeLost",
    "NodeShutdown": "NodeLost",
    "Shutdown": "NodeLost",
    "Terminated": "NodeLost",
    "NodeAffinity": "NotAdmitted",
    "UnexpectedAdmissionError": "NotAdmitted",
}
DEPENDENCY: Final = "DependencyUnavailable"
STEPS_RAISED: Final = "StepsRaised"
_MESSAGE_LIMIT: Final = 500


class Failure(Struct, frozen=True, kw_only=True):
    pod: Pod
    reason: str  # from a bounded vocabulary: it is a metric's label
    explanation: str  # without a full stop
    exit_code: int | None = None
    is_permanent: bool = False
    is_infrastructure: bool = False  # the cluster or another component is the cause

    @property
    def is_dependency(self) -> bool:
        return self.reason == DEPENDENCY

    @property
    def is_free_as_reported(self) -> bool:
        """Outside the restart budget because of the pod's own report, which may be wrong: limited separately."""
        return self.reason in (DEPENDENCY, STEPS_RAISED)


def classify(title: str, pod: Pod) -> Failure:
    """Only for a pod that ended by itself before the run was done."""
    if lost := _infrastructure_reason(pod):
        detail = f": {_clip(pod.status.message)}" if pod.status.message else ""
        node = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
        explanation = f"{title} was lost{node} ({lost}){detail}"
        return Failure(pod=pod, reason=lost, explanation=explanation, is_infrastructure=True)
    ended = _guilty_container(pod)
    if ended is None:
        detail = _clip(pod.status.message) or pod.status.reason or "no container status"
        return Failure(pod=pod, reason="Error", explanation=f"{title} failed: {detail}")
    container, state = ended
    return _from_exit(title, pod, container, state)


def _from_exit(title: str, pod: Pod, container: ContainerStatus, state: Terminated) -> Failure:
    reported = termination.decode(state.message) if state.message else None
    if state.reason == "OOMKilled":
        explanation = f"{title} ran out of memory: OOMKilled"
        return Failure(pod=pod, reason="OOMKilled", explanation=explanation, exit_code=state.exit_code)
    where = "" if container.name == "main" else f" (container {container.name})"
    step = f" at step {reported.step}" if reported and reported.step is not None else ""
    if state.exit_code == 0 and reported is not None and _reached_outdated_total(pod, reported):
        explanation = f"{title}{where} ended{step}, the last one before training.steps was raised"
        return Failure(pod=pod, reason=STEPS_RAISED, explanation=explanation, exit_code=0, is_infrastructure=True)
    if state.exit_code == 0:
        explanation = f"{title}{where} ended{step} before the run was done (exit code 0)"
        return Failure(pod=pod, reason="EndedEarly", explanation=explanation, exit_code=0)
    if reported is None:
        code = f"exit code {state.exit_code}" + (f", signal {state.signal}" if state.signal else "")
        detail = f": {_clip(state.message)}" if state.message else ""
        explanation = f"{title}{where} failed ({code}){detail}"
        return Failure(pod=pod, reason="Error", explanation=explanation, exit_code=state.exit_code)
    return Failure(
        pod=pod,
        reason=reported.reason,
        explanation=f"{title}{where} failed{step} ({reported.reason}): {_clip(reported.message).rstrip('.')}",
        exit_code=state.exit_code,
        is_permanent=reported.reason in termination.PERMANENT,
        is_infrastructure=reported.reason == DEPENDENCY,
    )


def _reached_outdated_total(pod: Pod, reported: Termination) -> bool:
    """All the steps it was asked for are done; a higher training.steps came too late to reach it."""
    if reported.reason != "Finished" or reported.step is None:
        return False
    if pod.component == ENVIRONMENT:  # it ends by itself only after the last step
        return True
    return reported.progress is not None and 0 < reported.progress.configured_steps <= reported.step


def _infrastructure_reason(pod: Pod) -> str:
    target = pod.condition("DisruptionTarget")
    if target is not None and target.status == "True":
        return _DISRUPTIONS.get(target.reason, "Evicted")
    if pod.status.reason.startswith("OutOf"):  # the node had no room after all: OutOfcpu, OutOfnvidia.com/gpu, ...
        return "NotAdmitted"
    return _INFRASTRUCTURE.get(pod.status.reason, "")


def _guilty_container(pod: Pod) -> tuple[ContainerStatus, Terminated] | None:
    """The first that failed; when all went well, the last one to end."""
    ended = [(each, each.state.terminated) for each in pod.containers if each.state.terminated is not None]
    failed = [(each, state) for each, state in ended if state.exit_code != 0]
    return next(iter(failed or reversed(ended)), None)


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"
