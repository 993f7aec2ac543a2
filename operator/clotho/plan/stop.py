"""Ending in order: environments first, then the trainer with a last checkpoint, then the API server."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from clotho.api.names import TRAINER
from clotho.api.status import Phase
from clotho.plan.health import next_look, worst_problem
from clotho.plan.model import Delete
from clotho.plan.parts import Part
from clotho.plan.pods import Pod
from clotho.plan.progress import checkpoint
from clotho.plan.restarts import delete_pod
from clotho.plan.situation import Decision, Situation, later

LINGER_SECONDS: Final = 60  # a trainer that is done ends by itself, and a pod that ended keeps its logs


def stop_in_order(situation: Situation) -> Decision:
    """For `stop` and for `suspend`: the same way down, another name at the end."""
    end: Phase = "Stopped" if situation.run.spec.stop else "Suspended"
    stage = next(_stages(situation, lambda pod: True), ())
    if not stage:
        return Decision(phase=end, reason=end, message=_farewell(situation, end), parts=situation.parts)
    return Decision(
        phase="Stopping",
        reason="Stopping",
        message=_waiting_for(situation, stage),
        parts=situation.parts,
        actions=delete_live(stage),
        wake_at=next_look(situation),
    )


def tidy_up(situation: Situation) -> tuple[tuple[Delete, ...], datetime | None]:
    """Of a finished run, pods that still live are ended in the same order; ended ones stay for their logs."""
    stage = next(_stages(situation, lambda pod: not pod.has_ended), ())
    status = situation.run.status
    if status.phase == "Completed" and status.completion_time and any(part.component == TRAINER for part, _ in stage):
        patience = later(status.completion_time, LINGER_SECONDS)
        if situation.now < patience:
            return (), patience
    return delete_live(stage), None


def delete_live(stage: tuple[tuple[Part, Pod], ...]) -> tuple[Delete, ...]:
    return tuple(delete_pod(pod) for _, pod in stage if not pod.is_terminating)


def _stages(situation: Situation, is_due: Callable[[Pod], bool]) -> Iterator[tuple[tuple[Part, Pod], ...]]:
    """The non-empty stages that are left, the next one first."""
    parts = situation.parts
    for group in (parts.environments, (parts.trainer,), (parts.api_server,)):
        if stage := tuple((part, pod) for part in group for pod in part.pods if is_due(pod)):
            yield stage


def _waiting_for(situation: Situation, stage: tuple[tuple[Part, Pod], ...]) -> str:
    if problem := worst_problem(situation):
        return problem.message
    titles = dict.fromkeys(part.title for part, _ in stage)
    return f"Stopping: waiting for {', '.join(titles)} to end."


def _farewell(situation: Situation, end: Phase) -> str:
    saved = checkpoint(situation)
    kept = f"the checkpoint of step {saved.step} is kept" if saved else "there is no checkpoint yet"
    if end == "Suspended":
        return f"Suspended; {kept}. Set spec.suspend to false to go on."
    return f"Stopped as asked; {kept}."
