"""A spec that got past admission although it is wrong: said plainly, nothing started, nothing else disturbed."""

from datetime import datetime

import msgspec

from clotho.api.status import Condition, ConditionType, TrainingRunStatus, Truth
from clotho.api.training_run import UnreadableRun
from clotho.plan.model import Event, Plan
from clotho.plan.situation import Decision, Situation


def refuse(situation: Situation, problem: str) -> Decision:
    """The phase stays: pods that run on an earlier, valid spec are left alone."""
    return Decision(
        phase=situation.run.status.phase,
        reason="Invalid",
        message=_say(problem),
        parts=situation.parts,
        is_stuck=True,
        is_refused=True,
    )


def _say(problem: str) -> str:
    return f"The spec is not valid: {problem}."


def plan_refusal(run: UnreadableRun, now: datetime) -> Plan[TrainingRunStatus]:
    """For a spec that does not even decode: there is nothing to decide, only something to say."""
    moment, generation, before = now.replace(microsecond=0), run.metadata.generation, run.status
    message = _say(run.problem)

    def condition(kind: ConditionType, truth: Truth) -> Condition:
        old = before.condition(kind)
        since = old.last_transition_time if old is not None and old.status == truth else moment
        return Condition(
            type=kind,
            status=truth,
            reason="Invalid",
            message=message,
            last_transition_time=since,
            observed_generation=generation,
        )

    kept = tuple(each for each in before.conditions if each.type not in ("Accepted", "Ready", "Reconciling", "Stalled"))
    said = (condition("Accepted", "False"), condition("Ready", "False"), condition("Stalled", "True"))
    status: TrainingRunStatus = msgspec.structs.replace(
        before,
        message=message,
        observed_generation=generation,
        conditions=(*said, *kept),
    )
    if status == before:
        return Plan()
    written = msgspec.structs.replace(status, written_at=moment)
    return Plan(status=written, events=(Event(type="Warning", reason="Invalid", message=message),))
