"""Ending in order: environments and inference replicas first, then the trainer with a last checkpoint, then the API
server.

Of several trainer pods the first ends first: it needs the others until the checkpoint is written.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from clotho.api.names import TRAINER
from clotho.api.phases import Phase
from clotho.plan.model import Delete, delete_pod
from clotho.plan.pods import Pod
from clotho.plan.run.components import RunComponent
from clotho.plan.run.gang import GRACE
from clotho.plan.run.health import next_check, worst_problem
from clotho.plan.run.progress import checkpoint
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.times import later

LINGER_SECONDS: Final = 60  # a trainer that is done ends by itself, and a pod that ended keeps its logs


def stop_in_order(situation: Situation) -> Decision:
    """For `stop` and for `suspend`: the same way down, another name at the end."""
    end: Phase = "Stopped" if situation.run.spec.stop else "Suspended"
    return stop_pods(situation) or Decision(
        phase=end, reason=end, message=_ending_message(situation, end), components=situation.components
    )


def stop_pods(situation: Situation) -> Decision | None:
    """The next stage of a stop; None once all pods are gone."""
    stage = next(stages(situation, lambda pod: not pod.is_gone), ())
    if not stage:
        return None
    return Decision(
        phase="Stopping",
        reason="Stopping",
        message=_waiting_for(situation, stage),
        components=situation.components,
        actions=delete_live(stage),
        wake_at=next_check(situation),
    )


def tidy_up(situation: Situation) -> tuple[tuple[Delete, ...], datetime | None]:
    """Of a finished run, pods that still live are ended in the same order; ended ones stay for their logs."""
    stage = next(stages(situation, lambda pod: not pod.has_ended), ())
    status = situation.run.status
    if status.phase == "Completed" and status.completion_time and any(each.kind == TRAINER for each, _ in stage):
        until = later(status.completion_time, LINGER_SECONDS)
        if situation.now < until:
            return (), until
    return delete_live(stage), None


def delete_live(stage: tuple[tuple[RunComponent, Pod], ...]) -> tuple[Delete, ...]:
    return tuple(delete_pod(pod, grace_of(pod)) for _, pod in stage if not pod.is_terminating)


def grace_of(pod: Pod) -> int | None:
    """None: the pod's own."""
    return GRACE if pod.is_follower else None


def stages(situation: Situation, is_due: Callable[[Pod], bool]) -> Iterator[tuple[tuple[RunComponent, Pod], ...]]:
    """The non-empty stages that are left, the next one first."""
    components, trainer = situation.components, situation.components.trainer
    environments = [(component, pod) for component in components.environments for pod in component.pods]
    inference = [(components.inference, pod) for pod in components.inference.pods]
    first = [(trainer, pod) for pod in trainer.pods if not pod.is_follower]
    followers = [(trainer, pod) for pod in trainer.pods if pod.is_follower]
    api_server = [(components.api_server, pod) for pod in components.api_server.pods]
    for members in (environments, inference, first, followers, api_server):
        if stage := tuple((component, pod) for component, pod in members if is_due(pod)):
            yield stage


def _waiting_for(situation: Situation, stage: tuple[tuple[RunComponent, Pod], ...]) -> str:
    if problem := worst_problem(situation):
        return problem.message
    titles = dict.fromkeys(component.title for component, _ in stage)
    return f"Stopping: waiting for {', '.join(titles)} to end."


def _ending_message(situation: Situation, end: Phase) -> str:
    saved = checkpoint(situation)
    kept = f"the checkpoint of step {saved.step} is kept" if saved else "there is no checkpoint"
    if situation.run.spec.storage.ephemeral:
        kept = "nothing is kept, because storage.ephemeral is true"
    if end == "Suspended":
        return f"Suspended; {kept}. Set spec.suspend to false to resume."
    return f"Stopped; {kept}."
