"""Why a pod does not get to work, where no exit code shows it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct

from clotho.plan.pods import Pod
from clotho.plan.times import earliest, later
from clotho.plan.wording import sentence

_IMAGE_ERRORS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
CONFIG_ERROR: Final = "CreateContainerConfigError"  # a Secret or ConfigMap, or a key of it, is missing
_START_ERRORS: Final = frozenset({CONFIG_ERROR, "CreateContainerError", "RunContainerError"})
IMAGE_PULL_FAILED: Final = "ImagePullFailed"
PULL_MINUTES: Final = 10  # that a pod tries to pull its image before it is given up
_STUCK_AFTER: Final = 60  # seconds beyond its grace period
_PREPARING: Final = frozenset({"ContainerCreating", "PodInitializing"})
_SLOW_PULL_AFTER: Final = 10  # seconds of pulling that go unmentioned: an image on the node takes one or two
_SLOW_AFTER: Final = 30  # seconds on a node without volumes and network


class Problem(Struct, frozen=True, kw_only=True):
    """Something that keeps a pod from its work and that will not show as an exit."""

    reason: str
    message: str
    is_permanent: bool = False


class Pull(Struct, frozen=True, kw_only=True):
    """An image on its way to a node."""

    image: str
    since: datetime

    def of(self, title: str) -> str:
        return f"pulling image {self.image} of {title} since {self.since:%H:%M:%S} UTC"


def pod_problem(title: str, pod: Pod, now: datetime, *, devices: str = "") -> Problem | None:
    if pod.is_terminating:
        return _stuck(title, pod, now)
    if pod.status.phase != "Pending":
        return None
    # A bound pod has its node, whatever an outdated condition says.
    scheduled = None if pod.spec.node_name else pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False" and scheduled.message:
        node = f"a node with {devices}" if devices else f"a node for {title}"
        return Problem(reason="Unschedulable", message=sentence(f"waiting for {node}: {scheduled.message}"))
    for container in pod.containers:
        waiting = container.state.waiting
        if waiting is None:
            continue
        detail = f": {waiting.message}" if waiting.message else ""
        if waiting.reason in _IMAGE_ERRORS:
            text = f"the image {container.image} of {title} cannot be pulled ({waiting.reason}){detail}"
            return Problem(
                reason=IMAGE_PULL_FAILED,
                message=sentence(text),
                is_permanent=waiting.reason == "InvalidImageName",
            )
        if waiting.reason in _START_ERRORS:
            text = f"{title} cannot be started ({waiting.reason}){detail}"
            return Problem(reason="CannotStart", message=sentence(text))
    return _unmounted(title, pod, now)


def lacks_config(pod: Pod) -> bool:
    """For moments also while its node has not read what is there."""
    return any(each.state.waiting and each.state.waiting.reason == CONFIG_ERROR for each in pod.containers)


def _unmounted(title: str, pod: Pod, now: datetime) -> Problem | None:
    """Only events say what the kubelet lacks; the pod's own spec says what it mounts."""
    slow_at = _slow_at(pod)
    if slow_at is None or now < slow_at:
        return None
    mounted = ", ".join(dict.fromkeys(volume.title for volume in pod.spec.volumes if volume.title))
    # Kubelets before 1.36 set the condition only after the pull.
    text = (
        f"{title}: volumes or network not ready on node {pod.spec.node_name}, or, before Kubernetes 1.36, "
        f"its image {pod.image} is being pulled; it mounts {mounted or 'nothing'}; "
        f"`kubectl describe pod {pod.name} -n {pod.metadata.namespace}` shows which"
    )
    return Problem(reason="CannotStart", message=sentence(text))


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
        f"Pod {pod.name} of {title}{where} does not terminate; if that node is gone for good, "
        f"run `kubectl delete pod {pod.name} -n {pod.metadata.namespace} --force`."
    )
    return Problem(reason="PodStuck", message=message)


def pull_deadline(pod: Pod) -> datetime | None:
    """Of a pod whose image cannot be pulled, counted from when it got its node; None of all others."""
    if not any(each.state.waiting and each.state.waiting.reason in _IMAGE_ERRORS for each in pod.containers):
        return None
    bound = pod.condition("PodScheduled")
    since = (bound.last_transition_time if bound is not None else None) or pod.metadata.creation_timestamp
    return later(since, 60 * PULL_MINUTES) if since is not None else None


def slow_pull(pod: Pod, now: datetime) -> Pull | None:
    """What a node still pulls for a pod after some seconds."""
    pull = _pull(pod)
    return pull if pull is not None and now >= later(pull.since, _SLOW_PULL_AFTER) else None


def _pull(pod: Pod) -> Pull | None:
    """With volumes and network ready, a container that comes next waits for nothing but its image."""
    prepared = pod.condition("PodReadyToStartContainers")
    if pod.is_terminating or pod.status.phase != "Pending" or prepared is None or prepared.status != "True":
        return None
    if any(each.state.running is not None for each in pod.status.init_container_statuses):
        return None
    coming = next((each for each in pod.containers if each.state.waiting is not None), None)
    if coming is None or coming.state.waiting is None or coming.state.waiting.reason not in _PREPARING:
        return None
    ended = (each.state.terminated.finished_at for each in pod.containers if each.state.terminated is not None)
    since = max(filter(None, (prepared.last_transition_time, *ended)), default=None)
    return Pull(image=coming.image, since=since) if since is not None else None


def next_pod_check(pods: Iterable[Pod], now: datetime) -> datetime | None:
    """When a pod that is terminating, being prepared by its node or pulling its image will have taken too long."""
    return earliest(time for pod in pods for time in _check_times(pod) if time > now)


def _check_times(pod: Pod) -> tuple[datetime, ...]:
    end, pull = pod.metadata.deletion_timestamp, _pull(pod)
    times = (
        later(end, _STUCK_AFTER) if end is not None else None,
        _slow_at(pod),
        later(pull.since, _SLOW_PULL_AFTER) if pull is not None else None,
        pull_deadline(pod),
    )
    return tuple(time for time in times if time is not None)
