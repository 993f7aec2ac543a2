"""A trainer of several pods is a gang: its pods start together, and when one of them ends, all are replaced.

The record names the attempt that is being replaced, not the pods: that is one incident, and short. The next attempt
starts once every pod of the last one is gone.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from clotho.api.phases import STARTED_PHASES
from clotho.api.status import GangStatus, LastExit
from clotho.plan.failures import DEPENDENCY, Failure
from clotho.plan.model import Delete, Event, delete_pod
from clotho.plan.pod_problems import pod_problem
from clotho.plan.pods import Pod
from clotho.plan.run.components import RunComponent, is_done_early, trainer_record
from clotho.plan.run.memory import classify_with_limit
from clotho.plan.run.restarts import GiveUp, RestartAt, backoff, decide_restart, enter, jitter, restart_notice, retire
from clotho.plan.run.situation import Situation
from clotho.plan.times import later
from clotho.plan.wording import sentence

GRACE: Final = 10  # seconds: there is nothing to save, and a rank that waits for a lost one would use all of its own
_SETTLE: Final = 5.0  # seconds in which the other pods end by themselves, perhaps the one that was the cause among them
_FIRST_RELEASE: Final = 30  # seconds until the next attempt; doubles
Account = tuple[RunComponent, list[Event], GiveUp | None]


def account(situation: Situation, trainer: RunComponent) -> Account:
    """At most one incident an attempt."""
    failures = sorted(_failures(situation, trainer), key=_likelier_cause_first)
    if _attempt(trainer) <= _gang(trainer).retired_attempt:
        return _corrected(situation, trainer, failures)
    failure = failures[0] if failures else _lost(situation, trainer)
    if failure is None:
        return _placed(situation, trainer)
    decision = decide_restart(failure, trainer.record, situation.run.spec.restarts, situation.moment)
    changed = enter(trainer, failure, _settled(failure, decision, situation.moment), situation.moment)
    if isinstance(decision, GiveUp):
        return changed, [], decision
    return changed, [restart_notice(failure, decision)], None


def _failures(situation: Situation, trainer: RunComponent) -> Iterator[Failure]:
    for pod in trainer.pods:
        if not pod.has_ended or pod.is_terminating or is_done_early(pod):
            continue
        failure = classify_with_limit(situation.run, trainer, pod)
        if _was_asked_to_end(pod, failure):
            failure = msgspec.structs.replace(failure, reason=DEPENDENCY, is_infrastructure=True)
        yield failure


def _was_asked_to_end(pod: Pod, failure: Failure) -> bool:
    """By another rank: the first pod ends the others, and any pod that is evicted stops all of them in order."""
    has_stopped = pod.termination is not None and pod.termination.reason == "Stopped"
    return failure.exit_code == 0 and (pod.is_follower or has_stopped)


def _likelier_cause_first(failure: Failure) -> tuple[bool, bool, int]:
    """Ranks that end because another one did are not the cause."""
    return not failure.is_permanent, failure.is_dependency, failure.pod.index


def _settled(failure: Failure, decision: RestartAt | GiveUp, now: datetime) -> RestartAt | GiveUp:
    """The pod that was the cause may be the last of which the end is reported."""
    if isinstance(decision, GiveUp) or not failure.is_dependency:
        return decision
    return RestartAt(max(decision.at, later(now, _SETTLE)), decision.is_counted)


def _corrected(situation: Situation, trainer: RunComponent, failures: list[Failure]) -> Account:
    """The incident is counted; now the pod that was the cause has ended, too, and its failure takes the place."""
    record = trainer.record
    is_blamed_on_others = record.last_exit is not None and record.last_exit.reason == DEPENDENCY
    if not is_blamed_on_others or not failures or failures[0].is_dependency:
        return trainer, [], None
    decision = decide_restart(failures[0], record, situation.run.spec.restarts, situation.moment)
    changed = enter(trainer, failures[0], decision, situation.moment).with_record(
        restarts=record.restarts, dependency_failures=max(0, record.dependency_failures - 1)
    )
    return changed, [], decision if isinstance(decision, GiveUp) else None


def _lost(situation: Situation, trainer: RunComponent) -> Failure | None:
    """Somebody took away a pod of a gang that was complete."""
    missing = sorted(set(range(trainer.replicas)) - {pod.index for pod in trainer.pods})
    if not trainer.pods or not missing or not _was_complete(situation, trainer):
        return None
    pods = f"pod {missing[0]}" if len(missing) == 1 else f"{len(missing)} of {trainer.replicas} pods"
    explanation = f"{trainer.title} lost {pods}"
    return Failure(pod=trainer.pods[0], reason="Deleted", explanation=explanation, is_infrastructure=True)


def _was_complete(situation: Situation, trainer: RunComponent) -> bool:
    """As the stored status has it; else the attempt may be one that is just being created."""
    stored = situation.stored
    is_same = _attempt(trainer) in (0, stored.attempt)
    return stored.phase in STARTED_PHASES and trainer.record.state != "Missing" and is_same


def vanished(situation: Situation, trainer: RunComponent) -> int:
    """Whether somebody took away the whole gang."""
    is_expected = situation.stored.attempt <= _gang(trainer).retired_attempt
    return int(not trainer.pods and not is_expected and _was_complete(situation, trainer))


def _placed(situation: Situation, trainer: RunComponent) -> Account:
    """A gang of which only some pods have a node gives those back, since another run may need them."""
    record, gang = trainer.record, _gang(trainer)
    due = release_time(situation, trainer)
    if due is None or situation.now < due:
        if gang.releases and _count_placed(trainer) == trainer.replicas:
            return trainer.with_record(gang=msgspec.structs.replace(gang, releases=0)), [], None
        return trainer, [], None
    summary = f"only {_count_placed(trainer)} of {trainer.replicas} pods of {trainer.title} got a node"
    asked = situation.run.spec.trainer
    devices = asked.devices(asked.gpus)
    problems = (pod_problem(trainer.title_of(pod), pod, situation.now, devices=devices) for pod in trainer.pods)
    detail = next((problem.message for problem in problems if problem is not None), "")
    message = f"{sentence(summary)} {detail}".strip()
    seconds = backoff(gang.releases, _FIRST_RELEASE, _seed(situation, trainer))
    retry_at = later(situation.moment, round(seconds))
    changed = retire(trainer, _attempt(trainer), retry_at, gang.releases + 1).with_record(
        last_exit=LastExit(reason="HalfPlaced", message=message, time=situation.moment), restarts=record.restarts
    )
    notice = f"{message} They are removed; the next attempt starts at {retry_at:%H:%M:%S} UTC."
    return changed, [Event(type="Warning", reason="HalfPlaced", message=notice)], None


def release_time(situation: Situation, trainer: RunComponent) -> datetime | None:
    """When the nodes of a half-placed gang are given back; None of all others."""
    created = [pod.metadata.creation_timestamp for pod in trainer.pods]
    is_half = trainer.is_gang and 0 < _count_placed(trainer) < trainer.replicas
    if not is_half or any(pod.is_terminating or pod.has_ended for pod in trainer.pods):
        return None
    newest = max((time for time in created if time is not None), default=None)
    limit = situation.settings.placement_seconds * jitter(_seed(situation, trainer))
    return later(newest, limit) if newest is not None else None


def _count_placed(trainer: RunComponent) -> int:
    return sum(bool(pod.spec.node_name) for pod in trainer.pods)


def _seed(situation: Situation, trainer: RunComponent) -> str:
    """Different for two runs that wait for each other's nodes, and for every attempt."""
    return f"{situation.run.metadata.uid}/{_attempt(trainer)}"


def delete_retired(situation: Situation, trainer: RunComponent) -> tuple[list[Delete], list[datetime]]:
    """What is due of the retired attempt, and when the rest will be. Ended pods stay for their logs until the next."""
    gang, last_exit = _gang(trainer), trainer.record.last_exit
    if gang.retry_at is None or _attempt(trainer) > gang.retired_attempt:
        return [], []
    noticed = last_exit.time if last_exit is not None else None
    survivors_at = min(gang.retry_at, later(noticed, _SETTLE)) if noticed is not None else gang.retry_at
    left = [pod for pod in trainer.pods if not pod.is_terminating]
    times = [gang.retry_at if pod.has_ended else survivors_at for pod in left]
    due = [delete_pod(pod, GRACE) for pod, at in zip(left, times, strict=True) if at <= situation.now]
    return due, [at for at in (gang.retry_at, *times) if at > situation.now]


def open_places(situation: Situation, trainer: RunComponent) -> list[int]:
    """All, once nothing of the last attempt is left; or the rest, where creating them was interrupted."""
    gang, pods = _gang(trainer), trainer.pods
    if not pods:
        is_early = gang.retry_at is not None and situation.now < gang.retry_at
        return [] if is_early else list(range(trainer.replicas))
    is_over = _attempt(trainer) <= gang.retired_attempt or any(pod.is_terminating or pod.has_ended for pod in pods)
    if is_over or _was_complete(situation, trainer):
        return []
    return sorted(set(range(trainer.replicas)) - {pod.index for pod in pods})


def replacement_time(trainer: RunComponent) -> datetime | None:
    """When the next attempt starts; None while an attempt is under way."""
    gang = _gang(trainer)
    return gang.retry_at if _attempt(trainer) <= gang.retired_attempt else None


def _attempt(trainer: RunComponent) -> int:
    """Of the pods that are there; 0 where there are none."""
    return max((pod.attempt for pod in trainer.pods), default=0)


def _gang(trainer: RunComponent) -> GangStatus:
    return trainer_record(trainer).gang or GangStatus()
