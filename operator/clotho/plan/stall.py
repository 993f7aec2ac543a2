"""A standstill: pods are alive, but no step is made. Found with its cause, so that people know where to look."""

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from clotho.api.names import API_SERVER, ENVIRONMENT, TRAINER, Component
from clotho.api.status import StallStatus
from clotho.plan.completion import has_trained_enough
from clotho.plan.failures import Failure
from clotho.plan.model import STALLED, Event, Probe
from clotho.plan.parts import Part, Parts
from clotho.plan.progress import run_progress
from clotho.plan.restarts import GiveUp, RestartAt, decide_restart, enter, restart_notice
from clotho.plan.situation import Situation, later, sentence

_NOT_READY: Final[dict[str, str]] = {
    API_SERVER: "APIServerNotReady",
    TRAINER: "TrainerNotReady",
    ENVIRONMENT: "EnvironmentsNotReady",
}


class Cause(Struct, frozen=True, kw_only=True):
    name: str
    explanation: str
    guilty: Component | None


class Standstill(Struct, frozen=True, kw_only=True):
    """What the stall policy found; `stall` is None as long as the run moves."""

    parts: Parts
    stall: StallStatus | None = None
    message: str = ""
    notices: tuple[Event, ...] = ()
    give_up: GiveUp | None = None
    check_at: datetime | None = None


def find_standstill(situation: Situation) -> Standstill:
    moved = last_movement(situation)
    if moved is None or has_trained_enough(situation) or not all(map(_is_at_work, situation.parts)):
        return Standstill(parts=situation.parts)
    due = later(moved, situation.run.spec.stall.after_seconds)
    if situation.now < due:
        return Standstill(parts=situation.parts, check_at=due)
    cause = find_cause(situation)
    message = sentence(f"no step since {moved:%Y-%m-%d %H:%M:%S} UTC: {cause.explanation}")
    before = situation.run.status.stall
    if before is not None and before.since == moved:
        return Standstill(
            parts=situation.parts, stall=msgspec.structs.replace(before, cause=cause.name), message=message
        )
    notice = Event(type="Warning", reason=STALLED, message=message, cause=cause.name)
    found = Standstill(
        parts=situation.parts,
        stall=StallStatus(cause=cause.name, since=moved),
        message=message,
        notices=(notice,),
    )
    return _with_restart(situation, found, cause) if situation.run.spec.stall.action == "Restart" else found


def _is_at_work(part: Part) -> bool:
    return part.replicas == 0 or any(pod.is_at_work for pod in part.pods)


def last_movement(situation: Situation) -> datetime | None:
    """The last step, or the last change of pods: a new pod gets the whole time again."""
    progress = run_progress(situation)
    times = [situation.run.status.running_time, progress.last_step_time if progress else None]
    times += [pod.metadata.creation_timestamp for part in situation.parts for pod in part.pods]
    return max((time for time in times if time is not None), default=None)


def find_cause(situation: Situation) -> Cause:
    for part in situation.parts:
        if not part.is_ready:
            return Cause(
                name=_NOT_READY[part.component], explanation=f"{part.title} is not ready", guilty=part.component
            )
    probes, parts = situation.observed.probes, situation.parts
    if problem := _silence(probes.api_server, parts.api_server):
        words = f"the API server does not answer ({problem})"
        return Cause(name="APIServerNotAnswering", explanation=words, guilty=API_SERVER)
    if problem := _silence(probes.trainer, parts.trainer):
        words = f"the trainer does not answer ({problem})"
        return Cause(name="TrainerHung", explanation=words, guilty=TRAINER)
    if situation.run.spec.is_inline:
        return Cause(name="TrainerHung", explanation="the trainer answers but makes no step", guilty=TRAINER)
    if problem := _silence(probes.inference, parts.trainer):
        words = f"the inference server does not answer ({problem})"
        return Cause(name="InferenceNotAnswering", explanation=words, guilty=TRAINER)
    queue = probes.api_server.answer if probes.api_server else None
    if queue is None:
        return Cause(name="Unknown", explanation="the API server has not been asked yet", guilty=None)
    if queue.batches_ready:
        words = f"the trainer hangs while {queue.batches_ready} complete batches wait for it"
        return Cause(name="TrainerHung", explanation=words, guilty=TRAINER)
    if queue.is_full:
        words = f"the API server is full with {queue.queue_groups} groups that do not make a batch"
        return Cause(name="APIServerFull", explanation=words, guilty=API_SERVER)
    words = f"the environments are not producing ({queue.environments_connected} connected)"
    return Cause(name="EnvironmentsNotProducing", explanation=words, guilty=ENVIRONMENT)


def _silence(probe: Probe[Any] | None, part: Part) -> str:
    """Why the present pod did not answer; empty when it did, or was not asked."""
    is_current = probe is not None and any(pod.uid == probe.pod_uid for pod in part.pods)
    return (probe.problem or "no reason given") if probe is not None and is_current and probe.answer is None else ""


def _with_restart(situation: Situation, found: Standstill, cause: Cause) -> Standstill:
    """Enter the restart of the guilty into the record; they are deleted once that is stored."""
    parts, notices = found.parts, list(found.notices)
    for part in parts:
        changed = part
        for pod in part.pods if part.component == cause.guilty else ():
            failure = Failure(pod=pod, reason="Stalled", explanation=f"{part.title} caused a standstill")
            decision = decide_restart(failure, changed.record, situation.run.spec.restarts, situation.moment)
            if isinstance(decision, GiveUp):
                return msgspec.structs.replace(found, give_up=decision)
            at_once = RestartAt(situation.moment, decision.is_counted)
            changed = enter(changed, failure, at_once, situation.moment)
            notices.append(restart_notice(failure, at_once))
        parts = parts.replace([changed])
    return msgspec.structs.replace(found, parts=parts, notices=tuple(notices))
