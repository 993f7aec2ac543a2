"""A spec that got past admission although it is invalid: reported, nothing started, nothing else disturbed."""

from datetime import datetime

import msgspec

from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import UnreadableRun
from clotho.plan.conditions import Wanted, conditions, stalled
from clotho.plan.model import Event, Plan
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.wording import not_valid


def refuse(situation: Situation, problem: str) -> Decision:
    """The phase stays: pods that run on an earlier, valid spec are left alone."""
    return Decision(
        phase=situation.run.status.phase,
        reason="Invalid",
        message=not_valid(problem),
        components=situation.components,
        is_stalled=True,
        is_refused=True,
    )


def plan_refusal(run: UnreadableRun, now: datetime) -> Plan[TrainingRunStatus]:
    """For a spec that does not even decode: there is nothing to decide, only something to say."""
    moment, generation, before = now.replace(microsecond=0), run.metadata.generation, run.status
    if before.is_finished and before.observed_generation == generation:
        return Plan()  # an earlier release took this spec, and the run is over
    message = not_valid(run.problem)

    wanted: list[Wanted] = [("Accepted", "False", "Invalid", message), *stalled("Invalid", message)]
    kept = tuple(each for each in before.conditions if each.type not in ("Accepted", "Ready", "Reconciling", "Stalled"))
    status: TrainingRunStatus = msgspec.structs.replace(
        before,
        message=message,
        observed_generation=generation,
        conditions=(*conditions(wanted, before.conditions, moment, generation), *kept),
    )
    if status == before:
        return Plan()
    written = msgspec.structs.replace(status, written_at=moment)
    return Plan(status=written, events=(Event(type="Warning", reason="Invalid", message=message),))
