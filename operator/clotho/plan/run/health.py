"""How each component is doing, in words, and what that makes of the run's phase."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from clotho.api.names import INFERENCE, TRAINER
from clotho.api.phases import Phase
from clotho.api.status import PodState
from clotho.plan.pod_problems import (
    IMAGE_PULL_FAILED,
    PULL_MINUTES,
    Problem,
    next_pod_check,
    pod_problem,
    pull_deadline,
    slow_pull,
)
from clotho.plan.pods import Pod
from clotho.plan.run.completion import has_trained_enough
from clotho.plan.run.components import RunComponent, RunComponents
from clotho.plan.run.gang import replacement_time
from clotho.plan.run.situation import Situation
from clotho.plan.wording import sentence, uncapitalised
from clotho.render.names import short_host_name

_ORDER: Final[tuple[PodState, ...]] = ("Failed", "Missing", "Stopping", "Waiting", "Starting", "Succeeded", "Ready")


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


def component_state(component: RunComponent) -> PodState:
    """Of several pods, the one furthest from ready."""
    if component.is_ready:
        return "Ready"
    wanted = [pod for pod in component.pods if pod.index < component.replicas]
    states = {pod_state(pod) for pod in wanted}
    if len(wanted) < component.replicas:
        states.add("Missing")
    return next((state for state in _ORDER if state in states), "Ready")


def worst_problem(situation: Situation) -> Problem | None:
    """One that cannot heal before one that may; else the first, in the order in which components need each other."""
    return max(_problems(situation), key=lambda problem: problem.is_permanent, default=None)


def _problems(situation: Situation) -> Iterator[Problem]:
    for key, refusal in situation.observed.refused.items():
        text = f"the API server refused {key.kind} {key.name}: {refusal.message}"
        yield Problem(reason="Refused", message=sentence(text), is_permanent=refusal.is_permanent)
    for component in situation.components:
        for pod in component.pods:
            devices = situation.run.spec.trainer.devices(_gpus_of(situation, component))
            if found := pod_problem(component.title_of(pod), pod, situation.now, devices=devices):
                yield _given_up(found, pod, situation)


def _gpus_of(situation: Situation, component: RunComponent) -> int:
    """Of each pod."""
    spec = situation.run.spec
    return {TRAINER: spec.gpus_per_trainer, INFERENCE: spec.gpus_per_replica}.get(component.kind, 0)


def _given_up(problem: Problem, pod: Pod, situation: Situation) -> Problem:
    """A run that never ran does not hold its GPUs for an image that cannot be pulled; one that did waits longer."""
    deadline = pull_deadline(pod)
    is_new = situation.run.status.running_time is None
    if problem.reason != IMAGE_PULL_FAILED or not is_new or deadline is None or situation.now < deadline:
        return problem
    message = f"{problem.message} It was tried for {PULL_MINUTES} minutes."
    return Problem(reason=problem.reason, message=message, is_permanent=True)


def next_check(situation: Situation) -> datetime | None:
    return next_pod_check((pod for component in situation.components for pod in component.pods), situation.now)


def live_phase(situation: Situation) -> Phase:
    """Running needs everything ready once; after that, everybody at work is enough."""
    components = situation.components
    if all(component.is_ready or component.is_optional for component in components):
        return "Running"
    if situation.run.status.phase == "Running":
        needed = (components.api_server, components.trainer) if has_trained_enough(situation) else tuple(components)
        if all(component.is_alive for component in needed):
            return "Running"
    return "Starting" if any(component.pods for component in components) else "Pending"


def waiting_message(components: RunComponents, restart_limit: int, *details: str) -> str:
    """For a run that is on its way up and in which nothing is wrong; the last failure stays visible meanwhile."""
    if not any(component.pods for component in components):
        return "The pods of the run are being created."
    waiting = [_who(component) for component in components if not component.is_ready]
    if next_attempt := replacement_time(components.trainer):
        again = attempt(components.trainer, restart_limit)
        when = f"{next_attempt:%H:%M:%S} UTC{f' ({again})' if again else ''}"
        return f"{_exit_message(components.trainer)} The next attempt starts at {when}."
    retries = [retry.at for component in components for retry in component.record.retries]
    if retries:
        failed = next(component for component in components if component.record.retries)
        again = attempt(failed, restart_limit)
        return f"{_exit_message(failed)} It is replaced at {max(retries):%H:%M:%S} UTC{f' ({again})' if again else ''}."
    message = sentence("; ".join(filter(None, (f"waiting for {', '.join(waiting)} to become ready", *details))))
    failures = (_last_failure(each, restart_limit) for each in components if not each.is_ready)
    return " ".join((message, *filter(None, failures)))


def pulled_images(situation: Situation) -> str:
    """Each image once, with the component and the time of its first pull."""
    pulls = [
        (pull, component.title)
        for component in situation.components
        for pod in component.pods
        if (pull := slow_pull(pod, situation.now)) is not None
    ]
    words: dict[str, str] = {}
    for pull, title in sorted(pulls, key=lambda found: found[0].since):
        words.setdefault(pull.image, pull.of(title))
    return "; ".join(words.values())


def attempt(component: RunComponent, restart_limit: int) -> str:
    """Which one this is, or the next one will be; empty before the first failure that counts."""
    failures = component.record.failures
    return f"attempt {failures + 1} of {restart_limit + 1}" if failures else ""


def _last_failure(component: RunComponent, restart_limit: int) -> str:
    if component.record.last_exit is None:
        return ""
    last = f"last: {uncapitalised(component.record.last_exit.message)}"
    return sentence("; ".join(filter(None, (attempt(component, restart_limit), last))))


def _exit_message(component: RunComponent) -> str:
    last = component.record.last_exit
    return last.message if last is not None else sentence(f"{component.title} failed")


def _who(component: RunComponent) -> str:
    has_many = component.replicas > 1
    return f"{component.title} ({component.ready} of {component.replicas})" if has_many else component.title


def unready_pods(situation: Situation, component: RunComponent) -> str:
    """Of a gang, the pod furthest from ready: which, where and why, and how many more are not.

    As long as one is missing, the others wait for it and are not ready either; so where all run, the first of which a
    rank has not joined.
    """
    if not component.is_gang or component.is_ready:
        return ""
    pods = {pod.index: pod for pod in component.pods}
    if absent := missing_ranks(situation):
        return absent
    behind = [index for index in range(component.replicas) if index not in pods or not pods[index].is_ready]
    states: list[PodState] = [pod_state(pods[index]) if index in pods else "Missing" for index in behind]
    first = behind[states.index(min(states, key=_ORDER.index))]
    rest = f"; {len(behind) - 1} more not ready" if len(behind) > 1 else ""
    return f"{_state_of(situation, component, first, pods.get(first))}{rest}"


def missing_ranks(situation: Situation) -> str:
    """Ranks that rank 0 waits for in vain though their pod runs; else the pod's own state says more."""
    report, topology = situation.progress, situation.run.spec.topology
    missing = report.missing_ranks if report is not None else ()
    pods = {pod.index: pod for pod in situation.components.trainer.pods if pod.status.phase == "Running"}
    behind = [rank for rank in missing if rank // topology.ranks_per_node in pods]
    if not behind or situation.components.trainer.is_ready:
        return ""
    index = behind[0] // topology.ranks_per_node
    own = [rank for rank in behind if rank // topology.ranks_per_node == index]
    ranks = f"rank {own[0]} has" if len(own) == 1 else f"ranks {own[0]} to {own[-1]} have"
    more = len(behind) - len(own)
    rest = f"; {more} more rank{'s' if more > 1 else ''} missing" if more else ""
    return f"{short_host_name(TRAINER, index)} on node {pods[index].spec.node_name}: {ranks} not joined{rest}"


def _state_of(situation: Situation, component: RunComponent, index: int, pod: Pod | None) -> str:
    host = short_host_name(component.kind, index)
    if pod is None:
        return f"{host}: no pod"
    where = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    asked = situation.run.spec.trainer
    problem = pod_problem(component.title_of(pod), pod, situation.now, devices=asked.devices(asked.gpus))
    state = problem.message.rstrip(".") if problem else pod_state(pod).lower()
    return f"{host}{where}: {state}"
