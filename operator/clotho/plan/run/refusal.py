"""A spec that got past admission although it is invalid: reported, nothing started, nothing else disturbed."""

from datetime import datetime

import msgspec

from clotho.api.status import REFUSED, TrainingRunStatus
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.conditions import Wanted, accepted, conditions, ready, refused, stalled
from clotho.plan.model import Event, Plan
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.wording import not_valid


def refuse(situation: Situation, problem: str) -> Decision:
    """The phase stays: pods that run on an earlier, valid spec are left alone."""
    return Decision(
        phase=situation.run.status.phase,
        reason=REFUSED,
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
    status = _with_verdict(before, [refused(message), *stalled(REFUSED, message)], message, generation, moment)
    if status == before:
        return Plan()
    written = msgspec.structs.replace(status, written_at=moment)
    return Plan(status=written, events=(Event(type="Warning", reason=REFUSED, message=message),))


def reinstated(run: TrainingRun, now: datetime) -> TrainingRun:
    """A finished run whose spec was refused after its end and can be read again: its end is shown as it was.

    0.1.0 refuses finished runs, too, when the CRDs are upgraded before it is.
    """
    status = run.status
    acceptance, end = status.condition("Accepted"), status.condition("Succeeded")
    if not status.is_finished or end is None or acceptance is None or acceptance.reason != REFUSED:
        return run
    wanted = [accepted()]
    if status.phase == "Completed":
        wanted += ready(end.reason, end.message)
    elif status.phase == "Failed":
        wanted += stalled(end.reason, end.message)
    shown = _with_verdict(status, wanted, end.message, run.metadata.generation, now.replace(microsecond=0))
    return msgspec.structs.replace(run, status=shown)


def _with_verdict(
    before: TrainingRunStatus, wanted: list[Wanted], message: str, generation: int, moment: datetime
) -> TrainingRunStatus:
    """Conditions of components, copies and the end stay as they are."""
    kept = tuple(each for each in before.conditions if each.type not in ("Accepted", "Ready", "Reconciling", "Stalled"))
    built = conditions(wanted, before.conditions, moment, generation)
    return msgspec.structs.replace(before, message=message, observed_generation=generation, conditions=(*built, *kept))
