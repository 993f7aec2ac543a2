"""Restart from the last checkpoint while the budget lasts; what the cluster did to a pod is free."""

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from clotho.api.names import ENVIRONMENT
from clotho.api.status import ComponentStatus, LastExit, Retry
from clotho.api.training_run import Restarts
from clotho.plan.completion import has_trained_enough
from clotho.plan.failures import Failure, classify
from clotho.plan.model import RESTARTING, Delete, Event, ObjectKey
from clotho.plan.parts import Part, Parts
from clotho.plan.pods import Pod
from clotho.plan.situation import Situation, earliest, later, sentence

LONGEST_BACKOFF: Final = 600.0
_FREE_RESTART_SPACING: Final = timedelta(seconds=60)


class RestartAt(Struct, frozen=True):
    at: datetime
    is_counted: bool


class GiveUp(Struct, frozen=True):
    reason: str
    explanation: str


def decide_restart(failure: Failure, record: ComponentStatus, budget: Restarts, now: datetime) -> RestartAt | GiveUp:
    if failure.is_permanent:
        return GiveUp(failure.reason, failure.explanation)
    if failure.is_infrastructure:
        last = record.last_exit.time if record.last_exit else None
        is_repeated = last is not None and now - last < _FREE_RESTART_SPACING
        return RestartAt(later(now, budget.backoff_seconds if is_repeated else 0), is_counted=False)
    if record.retries:  # several replicas that fall together are one incident
        return RestartAt(max(retry.at for retry in record.retries), is_counted=False)
    if record.failures >= budget.limit:
        used = f"all {budget.limit} restarts are used" if budget.limit else "restarts.limit is 0"
        return GiveUp(failure.reason, f"{failure.explanation}; {used}")
    return RestartAt(later(now, backoff(record.failures, budget.backoff_seconds, failure.pod.uid)), is_counted=True)


def backoff(failures: int, first: int, seed: str) -> float:
    """Doubling, capped, and spread by a tenth either way: the same for the same pod, different between runs."""
    spread = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=2).digest()) / 0xFFFF
    return min(LONGEST_BACKOFF, float(first * 2 ** min(failures, 20))) * (0.9 + 0.2 * spread)


class Accounting(Struct, frozen=True, kw_only=True):
    """Failures entered into the record. The pods themselves are only deleted once that record is stored."""

    parts: Parts
    notices: tuple[Event, ...] = ()
    give_up: GiveUp | None = None


def account_for_failures(situation: Situation) -> Accounting:
    parts, notices = situation.parts, []
    for part in parts:
        changed, gone = _count_vanished(part)
        notices += gone
        for pod in _newly_ended(situation, part):
            failure = classify(part.title, pod)
            decision = decide_restart(failure, changed.record, situation.run.spec.restarts, situation.moment)
            changed = enter(changed, failure, decision, situation.moment)
            if isinstance(decision, GiveUp):
                return Accounting(parts=parts.replace([changed]), give_up=decision)
            notices.append(restart_notice(failure, decision))
        parts = parts.replace([changed])
    return Accounting(parts=parts, notices=tuple(notices))


def vanished(situation: Situation, part: Part, missing: list[int]) -> int:
    """Of the places without a pod, how many had one that somebody took away. The new pod's label remembers it."""
    if situation.stored.phase not in ("Starting", "Running") or part.record.state == "Missing":
        return 0  # there may have been none
    return max(0, sum(index < part.record.replicas for index in missing) - part.replaced)


def _count_vanished(part: Part) -> tuple[Part, list[Event]]:
    restarts = max([part.record.restarts, *(pod.restarts_before for pod in part.pods)])
    message = sentence(f"a pod of {part.title} was gone and has been replaced")
    notice = Event(type="Warning", reason=RESTARTING, message=message, cause="Deleted")
    gone = restarts - part.record.restarts
    return (part.with_record(restarts=restarts) if gone else part), [notice] * gone


def restart_notice(failure: Failure, decision: RestartAt) -> Event:
    message = f"{failure.explanation}; it is replaced at {decision.at:%H:%M:%S} UTC"
    return Event(type="Warning", reason=RESTARTING, message=sentence(message), cause=failure.reason)


def enter(part: Part, failure: Failure, decision: RestartAt | GiveUp, now: datetime) -> Part:
    last_exit = LastExit(
        reason=failure.reason, message=sentence(failure.explanation), exit_code=failure.exit_code, time=now
    )
    if isinstance(decision, GiveUp):
        return part.with_record(last_exit=last_exit)
    return part.with_record(
        last_exit=last_exit,
        restarts=part.record.restarts + 1,
        failures=part.record.failures + decision.is_counted,
        retries=(*part.record.retries, Retry(uid=failure.pod.uid, at=decision.at)),
    )


def _newly_ended(situation: Situation, part: Part) -> Iterator[Pod]:
    for pod in part.pods:
        if not pod.has_ended or pod.is_terminating or pod.index >= part.replicas or part.retry_of(pod):
            continue
        if part.component == ENVIRONMENT and pod.status.phase == "Succeeded" and has_trained_enough(situation):
            continue  # it saw the last step before the final checkpoint was written
        yield pod


def delete_due(situation: Situation) -> tuple[tuple[Delete, ...], datetime | None]:
    """Delete pods whose stored retry is due; their names are free for new ones once they are gone."""
    due, times = [], []
    for part in situation.parts:
        for pod in part.pods:
            retry = part.retry_of(pod)
            if retry is None or pod.is_terminating:
                continue
            if retry.at <= situation.now:
                due.append(delete_pod(pod))
            else:
                times.append(retry.at)
    return tuple(due), earliest(times)


def delete_pod(pod: Pod) -> Delete:
    return Delete(key=ObjectKey("Pod", pod.name), uid=pod.uid, resource_version=pod.metadata.resource_version)
