"""Failures of the run's pods are entered into the record; what the stored record names is then deleted."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from msgspec import Struct

from clotho.api.names import ENVIRONMENT
from clotho.api.phases import STARTED_PHASES
from clotho.plan.model import RESTARTING, Delete, Event, delete_pod
from clotho.plan.pods import Pod
from clotho.plan.run import gang
from clotho.plan.run.completion import has_trained_enough
from clotho.plan.run.components import RunComponent, RunComponents
from clotho.plan.run.memory import classify_with_limit
from clotho.plan.run.restarts import GiveUp, decide_restart, enter, restart_notice
from clotho.plan.run.situation import Situation
from clotho.plan.times import earliest, later
from clotho.plan.wording import sentence

_PROBE_SECONDS: Final = 180  # in which a trainer is probed; the longest pause is 120 s by default


class Accounting(Struct, frozen=True, kw_only=True):
    """Failures entered into the record. The pods themselves are only deleted once that record is stored."""

    components: RunComponents
    notices: tuple[Event, ...] = ()
    give_up: GiveUp | None = None


def account_for_failures(situation: Situation) -> Accounting:
    components = situation.components
    notices: list[Event] = []
    for component in components:
        changed, gone = _count_vanished(component)
        notices += gone
        changed, found, give_up = (gang.account if component.is_gang else _account)(situation, changed)
        components = components.replace([changed])
        if give_up:
            return Accounting(components=components, give_up=give_up)
        notices += found
    return Accounting(components=components, notices=tuple(notices))


def _account(situation: Situation, component: RunComponent) -> gang.Account:
    notices: list[Event] = []
    for pod in _newly_ended(situation, component):
        failure = classify_with_limit(situation.run, component, pod)
        decision = decide_restart(failure, component.record, situation.run.spec.restarts, situation.moment)
        component = enter(component, failure, decision, situation.moment)
        if isinstance(decision, GiveUp):
            return component, notices, decision
        notices.append(restart_notice(failure, decision))
    return component, notices, None


def vanished(situation: Situation, component: RunComponent, missing: list[int]) -> int:
    """Of the places without a pod, how many had one that somebody took away. The new pod's label remembers it."""
    if component.is_gang:
        return gang.vanished(situation, component)
    stored = situation.stored
    if stored.phase not in STARTED_PHASES or not stored.attempt or component.record.state == "Missing":
        return 0  # there may have been none, or only those of an earlier spec
    return max(0, sum(index < component.record.replicas for index in missing) - component.replaced)


def _count_vanished(component: RunComponent) -> tuple[RunComponent, list[Event]]:
    restarts = max([component.record.restarts, *(pod.restarts_before for pod in component.pods)])
    message = sentence(f"a pod of {component.title} was gone and has been replaced")
    notice = Event(type="Warning", reason=RESTARTING, message=message, cause="Deleted")
    gone = restarts - component.record.restarts
    return (component.with_record(restarts=restarts) if gone else component), [notice] * gone


def _newly_ended(situation: Situation, component: RunComponent) -> Iterator[Pod]:
    for pod in component.pods:
        if not pod.has_ended or pod.is_terminating or pod.index >= component.replicas or component.retry_of(pod):
            continue
        if component.kind == ENVIRONMENT and pod.status.phase == "Succeeded" and has_trained_enough(situation):
            continue  # it saw the last step before the final checkpoint was written
        if (until := _awaited_until(situation, component, pod)) is not None and situation.now < until:
            continue
        yield pod


def _awaited_until(situation: Situation, component: RunComponent, pod: Pod) -> datetime | None:
    """An environment that reports the last step may know of it before the trainer was probed. Its own word counts for
    some time only: it may be wrong."""
    reported, ended = pod.termination, pod.ended_at
    if component.kind != ENVIRONMENT or reported is None or reported.reason != "Finished" or ended is None:
        return None
    return later(ended, _PROBE_SECONDS) if (reported.step or 0) >= situation.total_steps else None


def next_report(situation: Situation) -> datetime | None:
    """When the trainer should have confirmed what its environments report."""
    times = [_awaited_until(situation, component, pod) for component in situation.components for pod in component.pods]
    return earliest(time for time in times if time is not None and time > situation.now)


def delete_due(situation: Situation) -> tuple[tuple[Delete, ...], datetime | None]:
    """Delete pods whose stored retry is due; their names are free for new ones once they are gone."""
    due, times = gang.delete_retired(situation, situation.components.trainer)
    for component in situation.components:
        for pod in component.pods:
            retry = component.retry_of(pod)
            if retry is None or pod.is_terminating:
                continue
            if retry.at <= situation.now:
                due.append(delete_pod(pod))
            else:
                times.append(retry.at)
    return tuple(due), earliest(times)
