"""A stall: pods are alive, but no step is made. Diagnosed with its cause, so that people know where to look."""

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho.api.names import API_SERVER, ENVIRONMENT, INFERENCE, TRAINER, Component
from clotho.api.status import StallStatus
from clotho.plan.failures import Failure
from clotho.plan.model import STALLED, Event, Probe
from clotho.plan.run.completion import has_trained_enough
from clotho.plan.run.components import RunComponent, RunComponents, is_done_early
from clotho.plan.run.health import unready_pods
from clotho.plan.run.progress import run_progress
from clotho.plan.run.restarts import GiveUp, RestartAt, decide_restart, enter, restart_notice
from clotho.plan.run.situation import Situation
from clotho.plan.times import later
from clotho.plan.wording import sentence

_NOT_READY: Final[dict[str, str]] = {
    API_SERVER: "APIServerNotReady",
    TRAINER: "TrainerNotReady",
    INFERENCE: "InferenceNotReady",
    ENVIRONMENT: "EnvironmentsNotReady",
}


class Cause(Struct, frozen=True, kw_only=True):
    name: str
    explanation: str
    component: Component | None  # that is restarted


class StallCheck(Struct, frozen=True, kw_only=True):
    """What the stall policy found; `stall` is None as long as the run moves."""

    components: RunComponents
    stall: StallStatus | None = None
    message: str = ""
    notices: tuple[Event, ...] = ()
    give_up: GiveUp | None = None
    check_at: datetime | None = None


def find_stall(situation: Situation) -> StallCheck:
    moved = last_movement(situation)
    if moved is None or has_trained_enough(situation) or not all(map(_is_at_work, situation.components)):
        return StallCheck(components=situation.components)
    due = later(moved, situation.run.spec.stall.after_seconds)
    if situation.now < due:
        return StallCheck(components=situation.components, check_at=due)
    cause = find_cause(situation)
    message = sentence(f"no step since {moved:%Y-%m-%d %H:%M:%S} UTC: {cause.explanation}")
    before = situation.run.status.stall
    if before is not None and before.since == moved:
        return StallCheck(
            components=situation.components, stall=msgspec.structs.replace(before, cause=cause.name), message=message
        )
    notice = Event(type="Warning", reason=STALLED, message=message, cause=cause.name)
    found = StallCheck(
        components=situation.components,
        stall=StallStatus(cause=cause.name, since=moved),
        message=message,
        notices=(notice,),
    )
    return _with_restart(situation, found, cause) if situation.run.spec.stall.action == "Restart" else found


def _is_at_work(component: RunComponent) -> bool:
    if component.is_optional:
        return True
    at_work = sum(pod.is_at_work or is_done_early(pod) for pod in component.pods)
    return at_work >= (component.replicas if component.is_gang else min(component.replicas, 1))


def last_movement(situation: Situation) -> datetime | None:
    """The last step, or the last change of pods: a new pod gets the whole time again."""
    progress = run_progress(situation)
    times = [situation.run.status.running_time, progress.last_step_time if progress else None]
    times += [pod.metadata.creation_timestamp for component in situation.components for pod in component.pods]
    return max((time for time in times if time is not None), default=None)


def find_cause(situation: Situation) -> Cause:
    probes, components = situation.observed.probes, situation.components
    queue = probes.api_server.answer if probes.api_server else None
    if queue is not None and queue.storage_problem:
        return Cause(name="APIServerVolumeFull", explanation=queue.storage_problem, component=API_SERVER)
    for component in situation.components:
        if not component.is_ready and not component.is_optional:
            detail = unready_pods(situation, component)
            explanation = f"{component.title} is not ready" + (f" ({detail})" if detail else "")
            return Cause(name=_NOT_READY[component.kind], explanation=explanation, component=component.kind)
    if problem := _silence(probes.api_server, components.api_server):
        explanation = f"the API server does not answer ({problem})"
        return Cause(name="APIServerNotAnswering", explanation=explanation, component=API_SERVER)
    if problem := _silence(probes.trainer, components.trainer):
        explanation = f"the trainer does not answer ({problem})"
        return Cause(name="TrainerHung", explanation=explanation, component=TRAINER)
    if situation.run.spec.is_inline:
        return Cause(name="TrainerHung", explanation="the trainer answers but makes no step", component=TRAINER)
    if problem := _silence(probes.inference, components.trainer):
        explanation = f"the inference server does not answer ({problem})"
        return Cause(name="InferenceNotAnswering", explanation=explanation, component=TRAINER)
    if queue is None:
        return Cause(name="Unknown", explanation="the API server has not been asked yet", component=None)
    if queue.batches_ready:
        explanation = f"the trainer hangs while {queue.batches_ready} complete batches wait for it"
        return Cause(name="TrainerHung", explanation=explanation, component=TRAINER)
    if queue.is_full:
        explanation = f"the API server is full with {queue.queue_groups} groups that do not make a batch"
        return Cause(name="APIServerFull", explanation=explanation, component=API_SERVER)
    explanation = f"the environments are not producing ({queue.environments_connected} connected)"
    return Cause(name="EnvironmentsNotProducing", explanation=explanation, component=ENVIRONMENT)


def _silence(probe: Probe[Any] | None, component: RunComponent) -> str:
    """Why the present pod did not answer; empty when it did, or was not asked."""
    is_current = probe is not None and any(pod.uid == probe.pod_uid for pod in component.pods)
    return (probe.problem or "no reason given") if probe is not None and is_current and probe.answer is None else ""


def _with_restart(situation: Situation, found: StallCheck, cause: Cause) -> StallCheck:
    """Enter the restart of the pods that are the cause into the record; they are deleted once that is stored."""
    components, notices = found.components, list(found.notices)
    for component in components:
        changed = component
        due = component.pods[: 1 if component.is_gang else None] if component.kind == cause.component else ()
        for pod in due:
            failure = Failure(pod=pod, reason="Stalled", explanation=f"{component.title} caused a stall")
            decision = decide_restart(failure, changed.record, situation.run.spec.restarts, situation.moment)
            if isinstance(decision, GiveUp):
                return msgspec.structs.replace(found, give_up=decision)
            at_once = RestartAt(situation.moment, decision.is_counted)
            changed = enter(changed, failure, at_once, situation.moment)
            notices.append(restart_notice(failure, at_once))
        components = components.replace([changed])
    return msgspec.structs.replace(found, components=components, notices=tuple(notices))
