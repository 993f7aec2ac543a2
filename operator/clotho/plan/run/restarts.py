"""Restart from the last checkpoint while the budget lasts; what the cluster did to a pod is free."""

import hashlib
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from clotho.api.status import ComponentStatus, GangStatus, LastExit, Retry
from clotho.api.training_run import Restarts
from clotho.plan.failures import Failure
from clotho.plan.model import RESTARTING, Event
from clotho.plan.pods import Pod
from clotho.plan.run.components import RunComponent
from clotho.plan.times import later
from clotho.plan.wording import sentence

LONGEST_BACKOFF: Final = 600.0
DEPENDENCY_LIMIT: Final = 20
_FREE_RESTART_SPACING: Final = timedelta(seconds=60)
_LASTING: Final = timedelta(minutes=10)


class RestartAt(Struct, frozen=True):
    at: datetime
    is_counted: bool


class GiveUp(Struct, frozen=True):
    reason: str
    explanation: str


def decide_restart(failure: Failure, record: ComponentStatus, budget: Restarts, now: datetime) -> RestartAt | GiveUp:
    if failure.is_permanent:
        return GiveUp(failure.reason, failure.explanation)
    if failure.is_infrastructure and not failure.is_free_as_reported:
        last = record.last_exit.time if record.last_exit else None
        is_repeated = last is not None and now - last < _FREE_RESTART_SPACING
        return RestartAt(later(now, budget.backoff_seconds if is_repeated else 0), is_counted=False)
    if record.retries:  # several replicas that fall together are one incident
        return RestartAt(max(retry.at for retry in record.retries), is_counted=False)
    if failure.is_free_as_reported:
        return _restart_ever_more_slowly(failure, record, budget, now)
    if record.failures >= budget.limit:
        return GiveUp(failure.reason, f"{failure.explanation}; {_all_used(budget.limit)}")
    return RestartAt(later(now, backoff(record.failures, budget.backoff_seconds, failure.pod.uid)), is_counted=True)


def _all_used(limit: int) -> str:
    if limit == 1:
        return "its only restart is used"
    return f"all {limit} restarts are used" if limit else "restarts.limit is 0"


def _restart_ever_more_slowly(
    failure: Failure, record: ComponentStatus, budget: Restarts, now: datetime
) -> RestartAt | GiveUp:
    """Not the component's fault and so outside its budget, but not for ever: first at once, then ever more slowly."""
    before = dependency_failures(record, failure.pod)
    if before >= DEPENDENCY_LIMIT:
        return GiveUp(failure.reason, f"{failure.explanation}; {DEPENDENCY_LIMIT} restarts in a row did not help")
    delay = backoff(before - 1, max(1, budget.backoff_seconds), failure.pod.uid) if before else 0.0
    return RestartAt(later(now, delay), is_counted=False)


def dependency_failures(record: ComponentStatus, pod: Pod) -> int:
    """In a row: a pod that lasted ends the row."""
    born, ended = pod.metadata.creation_timestamp, pod.ended_at
    has_lasted = born is not None and ended is not None and ended - born >= _LASTING
    return 0 if has_lasted else record.dependency_failures


def backoff(failures: int, first: int, seed: str) -> float:
    """Doubling, capped, and spread by a tenth either way: the same for the same pod, different between runs."""
    return min(LONGEST_BACKOFF, float(first * 2 ** min(failures, 20))) * jitter(seed)


def jitter(seed: str) -> float:
    return 0.9 + 0.2 * int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=2).digest()) / 0xFFFF


def restart_notice(failure: Failure, decision: RestartAt) -> Event:
    message = f"{failure.explanation}; it is replaced at {decision.at:%H:%M:%S} UTC"
    return Event(type="Warning", reason=RESTARTING, message=sentence(message), cause=failure.reason)


def enter(component: RunComponent, failure: Failure, decision: RestartAt | GiveUp, now: datetime) -> RunComponent:
    last_exit = LastExit(
        reason=failure.reason, message=sentence(failure.explanation), exit_code=failure.exit_code, time=now
    )
    if isinstance(decision, GiveUp):
        return component.with_record(last_exit=last_exit)
    changed = component.with_record(
        last_exit=last_exit,
        restarts=component.record.restarts + 1,
        failures=component.record.failures + decision.is_counted,
        dependency_failures=_dependency_count(component, failure),
    )
    if component.is_gang:
        return retire(changed, failure.pod.attempt, decision.at)
    return changed.with_record(retries=(*component.record.retries, Retry(uid=failure.pod.uid, at=decision.at)))


def retire(component: RunComponent, attempt: int, retry_at: datetime, releases: int = 0) -> RunComponent:
    """All pods of a gang go, whichever of them failed."""
    return component.with_record(gang=GangStatus(retired_attempt=attempt, retry_at=retry_at, releases=releases))


def _dependency_count(component: RunComponent, failure: Failure) -> int:
    """Replicas that end together count once."""
    if not failure.is_free_as_reported or component.record.retries:
        return component.record.dependency_failures
    return dependency_failures(component.record, failure.pod) + 1
