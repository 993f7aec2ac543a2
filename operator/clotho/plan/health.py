"""How each part is doing, in words, and what that makes of the run's phase."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from msgspec import Struct

from clotho.api.names import ENVIRONMENT, TRAINER
from clotho.api.status import Phase, PodState
from clotho.plan.completion import has_trained_enough
from clotho.plan.parts import Part, Parts
from clotho.plan.pods import Pod
from clotho.plan.situation import Situation, later, sentence

_IMAGE_ERRORS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_START_ERRORS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_STUCK_AFTER: Final = 60  # seconds beyond its grace period
_SLOW_AFTER: Final = 30  # seconds on a node without volumes and network; pulling images comes later and is not meant
_ORDER: Final[tuple[PodState, ...]] = ("Failed", "Missing", "Stopping", "Waiting", "Starting", "Succeeded", "Ready")


class Problem(Struct, frozen=True, kw_only=True):
    """Something that keeps a pod from its work and that will not show as an exit."""

    reason: str
    message: str
    is_permanent: bool = False


def pod_state(pod: Pod) -> PodState:
    if pod.is_terminating:
        return "Stopping"
    if pod.status.phase == "Succeeded":
        return "Succeeded"
    if pod.status.phase == "Failed":
        return "Failed"
    if pod.is_ready:
        return "Ready"
    return "Starting" if pod.status.phase == "Running" else "Waiting"


def part_state(part: Part) -> PodState:
    """Of several pods, the one furthest from ready."""
    if part.is_ready:
        return "Ready"
    wanted = [pod for pod in part.pods if pod.index < part.replicas]
    states = {pod_state(pod) for pod in wanted}
    if len(wanted) < part.replicas:
        states.add("Missing")
    return next((state for state in _ORDER if state in states), "Ready")


def worst_problem(situation: Situation) -> Problem | None:
    """One that cannot heal before one that may; else the first, in the order in which parts need each other."""
    return max(_problems(situation), key=lambda problem: problem.is_permanent, default=None)


def _problems(situation: Situation) -> Iterator[Problem]:
    for key, refusal in situation.observed.refused.items():
        words = f"the API server refused {key.kind} {key.name}: {refusal.message}"
        yield Problem(reason="Refused", message=sentence(words), is_permanent=refusal.is_permanent)
    for part in situation.parts:
        for pod in part.pods:
            gpus = situation.run.spec.trainer.gpus if part.component == TRAINER else 0
            if found := pod_problem(part.title, pod, situation.now, gpus=gpus):
                yield found


def pod_problem(title: str, pod: Pod, now: datetime, *, gpus: int = 0) -> Problem | None:
    if pod.is_terminating:
        return _stuck(title, pod, now)
    if pod.status.phase != "Pending":
        return None
    # A bound pod has its node, whatever a late word of the scheduler says.
    scheduled = None if pod.spec.node_name else pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False" and scheduled.message:
        node = f"a node with {gpus} nvidia.com/gpu" if gpus else f"a node for {title}"
        return Problem(reason="Unschedulable", message=sentence(f"waiting for {node}: {scheduled.message}"))
    for container in pod.containers:
        waiting = container.state.waiting
        if waiting is None:
            continue
        said = f": {waiting.message}" if waiting.message else ""
        if waiting.reason in _IMAGE_ERRORS:
            words = f"the image {container.image} of {title} cannot be pulled ({waiting.reason}){said}"
            return Problem(
                reason="ImagePullFailed",
                message=sentence(words),
                is_permanent=waiting.reason == "InvalidImageName",
            )
        if waiting.reason in _START_ERRORS:
            words = f"{title} cannot be started ({waiting.reason}){said}"
            return Problem(reason="CannotStart", message=sentence(words))
    return _unmounted(title, pod, now)


def _unmounted(title: str, pod: Pod, now: datetime) -> Problem | None:
    """What the kubelet lacks is told by events alone; what the pod mounts is known here."""
    slow_at = _slow_at(pod)
    if slow_at is None or now < slow_at:
        return None
    mounted = ", ".join(dict.fromkeys(volume.title for volume in pod.spec.volumes if volume.title))
    words = (
        f"{title} waits for its volumes or its network on node {pod.spec.node_name}; it mounts {mounted or 'nothing'}; "
        f"`kubectl describe pod {pod.name}` says what is missing"
    )
    return Problem(reason="CannotStart", message=sentence(words))


def _slow_at(pod: Pod) -> datetime | None:
    """When a pod that its node has not prepared yet counts as slow; None of all others."""
    prepared, bound = pod.condition("PodReadyToStartContainers"), pod.condition("PodScheduled")
    if pod.status.phase != "Pending" or prepared is None or prepared.status != "False" or bound is None:
        return None
    return later(bound.last_transition_time, _SLOW_AFTER) if bound.last_transition_time is not None else None


def _stuck(title: str, pod: Pod, now: datetime) -> Problem | None:
    """deletionTimestamp is the end of the grace period. Never forced: the pod may be at work on a cut-off node."""
    until = pod.metadata.deletion_timestamp
    if until is None or now < later(until, _STUCK_AFTER):
        return None
    where = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    message = (
        f"Pod {pod.name} of {title}{where} does not end; when that node is gone for good, "
        f"run `kubectl delete pod {pod.name} --force`."
    )
    return Problem(reason="PodStuck", message=message)


def next_look(situation: Situation) -> datetime | None:
    """When a pod will have been ending, or coming up, for too long."""
    pods = [pod for part in situation.parts for pod in part.pods]
    ends = [pod.metadata.deletion_timestamp for pod in pods if pod.metadata.deletion_timestamp is not None]
    times = [later(end, _STUCK_AFTER) for end in ends] + [at for pod in pods if (at := _slow_at(pod)) is not None]
    return min((time for time in times if time > situation.now), default=None)


def live_phase(situation: Situation) -> Phase:
    """Running needs everything ready once; after that, everybody at work is enough."""
    parts = situation.parts
    if all(part.is_ready for part in parts):
        return "Running"
    if situation.run.status.phase == "Running":
        needed = (parts.api_server, parts.trainer) if has_trained_enough(situation) else tuple(parts)
        if all(part.is_alive for part in needed):
            return "Running"
    return "Starting" if any(part.pods for part in parts) else "Pending"


def waiting_message(parts: Parts) -> str:
    """For a run that is on its way up and in which nothing is wrong."""
    if not any(part.pods for part in parts):
        return "The pods of the run are being created."
    waiting = [_who(part) for part in parts if not part.is_ready]
    retries = [retry.at for part in parts for retry in part.record.retries]
    if retries:
        failed = next(part for part in parts if part.record.retries)
        words = failed.record.last_exit.message if failed.record.last_exit else sentence(f"{failed.title} failed")
        return f"{words} It is replaced at {max(retries):%H:%M:%S} UTC."
    return sentence(f"waiting for {', '.join(waiting)} to become ready")


def _who(part: Part) -> str:
    is_one_of_many = part.component == ENVIRONMENT and part.replicas > 1
    return f"{part.title} ({part.ready} of {part.replicas})" if is_one_of_many else part.title
