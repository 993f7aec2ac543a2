"""The status that a decision amounts to: kstatus-correct conditions, and no needless writes."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from clotho.api.names import API_SERVER, INFERENCE, Component
from clotho.api.phases import FINISHED_PHASES, RESTING_PHASES, Phase
from clotho.api.status import (
    AutoscalingStatus,
    Components,
    ComponentStatus,
    Condition,
    ConditionType,
    ExportStatus,
    PodState,
    RunProgress,
    TrainerStatus,
    TrainingRunStatus,
    Truth,
)
from clotho.plan.conditions import Wanted, accepted, conditions, refused
from clotho.plan.model import Event
from clotho.plan.run import progress as reported
from clotho.plan.run.components import RunComponent, trainer_record
from clotho.plan.run.health import component_state, unready_pods
from clotho.plan.run.revision import is_outdated, is_revised
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.times import earliest, later
from clotho.plan.wording import sentence

COPIED: Final = "CheckpointsCopied"
STATE_LOST: Final = "APIServerStateLost"  # reason of a condition and of its event
Record = TypeVar("Record", bound=ComponentStatus)
_COMPONENT_CONDITIONS: dict[Component, ConditionType] = {
    "api-server": "APIServerReady",
    "trainer": "TrainerReady",
    "inference": "InferenceReady",
    "environment": "EnvironmentsReady",
}


def compose(situation: Situation, decision: Decision) -> TrainingRunStatus:
    run, before = situation.run, situation.run.status
    if before.is_finished:
        return _after_the_end(situation, decision)
    progress, checkpoint = reported.run_progress(situation), reported.checkpoint(situation)
    is_finished = decision.phase in FINISHED_PHASES
    return TrainingRunStatus(
        phase=decision.phase,
        observed_generation=run.metadata.generation,
        message=_message(situation, decision, progress),
        conditions=_conditions(situation, decision),
        progress=progress,
        history=reported.history(situation),
        evaluations=reported.evaluations(situation),
        best_checkpoint=reported.best_checkpoint(situation),
        components=_components(situation, decision),
        autoscaling=before.autoscaling if decision.autoscaling is None else decision.autoscaling,
        resolved=decision.resolved or (() if is_revised(run) else situation.stored.resolved),
        policy=decision.policy or before.policy,
        queued_since=decision.queued_since,
        attempt=max([before.attempt, *_attempts(situation)]),
        restarts=sum(component.record.restarts for component in decision.components),
        checkpoint=checkpoint,
        stall=decision.stall,
        results=reported.results(situation, progress, checkpoint) if is_finished else None,
        wandb_url=reported.wandb_url(situation),
        start_time=None if decision.is_in_kueue else before.start_time or _first_pod_time(situation),
        running_time=_running_time(situation, decision),
        completion_time=situation.moment if is_finished else None,
        written_at=before.written_at,
    )


def _attempts(situation: Situation) -> list[int]:
    """From the first on the spec is fixed, so pods that were made from an earlier one do not count."""
    run, pods = situation.run, situation.components.trainer.pods
    return [pod.attempt for pod in pods if not is_outdated(run, pod)]


def _running_time(situation: Situation, decision: Decision) -> datetime | None:
    if decision.is_in_kueue:
        return None
    return situation.run.status.running_time or (situation.moment if decision.phase == "Running" else None)


def _after_the_end(situation: Situation, decision: Decision) -> TrainingRunStatus:
    """The verdict stands; only the pods may still change."""
    pods = {found.type: found for found in _built(situation, _component_conditions(situation, decision))}
    return msgspec.structs.replace(
        situation.run.status,
        observed_generation=situation.run.metadata.generation,
        components=_components(situation, decision),
        conditions=(
            *(pods.get(each.type, each) for each in situation.run.status.conditions if each.type != "Exported"),
            *_export_conditions(situation, decision.export),
        ),
        export=decision.export,
    )


def _export_conditions(situation: Situation, export: ExportStatus | None) -> tuple[Condition, ...]:
    if export is None:
        return ()
    truth: Truth = "True" if export.phase == "Completed" else "False"
    message = export.message if export.is_over else ""  # else it would change with every file
    return _built(situation, [("Exported", truth, export.phase, message)])


def _message(situation: Situation, decision: Decision, progress: RunProgress | None) -> str:
    if decision.reason != "Running" or progress is None:
        return decision.message
    report, total = situation.progress, progress.total_steps
    if report is not None and report.state == "compiling":
        return f"Compiling the model's layers for step {report.step + 1}/{total}; later steps are faster."
    return f"Training: step {progress.step}/{total}."


def _components(situation: Situation, decision: Decision) -> Components:
    components, phase = decision.components, decision.phase

    def described(component: RunComponent) -> ComponentStatus:
        return _filled(situation, component.record, component, phase)

    return Components(
        api_server=described(components.api_server) if components.api_server.replicas else None,
        trainer=_trainer(situation, components.trainer, phase),
        inference=described(components.inference) if _has_inference(components.inference) else None,
        environments=tuple(described(component) for component in components.environments),
        exporter=described(decision.exporter) if decision.exporter else None,
    )


def _has_inference(component: RunComponent) -> bool:
    """Also after the last replica was scaled away, as long as its pod is there."""
    return bool(component.replicas or component.pods or component.record.restarts)


def _state(situation: Situation, component: RunComponent, phase: Phase) -> PodState:
    """Pods that are gone are missing only as long as the run needs them."""
    state = component_state(component)
    if state != "Missing" or phase not in RESTING_PHASES or _was_finished_by_0_1_0(situation.stored):
        return state
    return "Completed" if phase == "Completed" else "Stopped"


def _was_finished_by_0_1_0(status: TrainingRunStatus) -> bool:
    """It has no condition Finished. 0.1.0 forgets a status with a state that it does not know, so after a rollback it
    would start the run again."""
    return status.is_finished and status.condition("Finished") is None


def _filled(situation: Situation, record: Record, component: RunComponent, phase: Phase) -> Record:
    return msgspec.structs.replace(
        record,
        state=_state(situation, component, phase),
        replicas=component.replicas,
        ready=component.ready,
        pod=component.pods[0].name if component.pods else "",
        image=(component.pods[0].image if component.pods else "") or component.record.image,
    )


def _trainer(situation: Situation, component: RunComponent, phase: Phase) -> TrainerStatus:
    topology = situation.run.spec.topology
    status = _filled(situation, trainer_record(component), component, phase)
    if topology.size == 1:
        return status
    detail = "" if phase in RESTING_PHASES else unready_pods(situation, component)
    ranks = f"{component.ready * topology.ranks_per_node}/{topology.size}"
    return msgspec.structs.replace(status, ranks=ranks, message=detail and f"{detail}.")


def _first_pod_time(situation: Situation) -> datetime | None:
    pods = [pod for component in situation.components for pod in component.pods]
    return earliest(pod.metadata.creation_timestamp for pod in pods if not pod.is_gone)


def _conditions(situation: Situation, decision: Decision) -> tuple[Condition, ...]:
    """kstatus: Reconciling and Stalled are only there when True; Ready is absent where rest is what was asked for."""
    phase, reason, message = decision.phase, decision.reason, decision.message
    wanted = [refused(message) if decision.is_refused else accepted()]
    wanted += _component_conditions(situation, decision)
    wanted += _copy_conditions(situation)
    if phase not in ("Stopped", "Suspended"):
        is_up = phase == "Completed" or (
            phase == "Running" and all(component.is_ready for component in decision.components)
        )
        is_ready = is_up and not decision.is_stalled
        wanted.append(("Ready", "True" if is_ready else "False", reason, message))
        if not is_ready and not decision.is_stalled and phase != "Failed":
            wanted.append(("Reconciling", "True", reason, message))
    if decision.is_stalled:
        wanted.append(("Stalled", "True", reason, message))
    if phase in FINISHED_PHASES:
        wanted.append(("Finished", "True", reason, message))
        wanted.append(("Succeeded", "True" if phase == "Completed" else "False", reason, message))
        wanted.append(("Failed", "True" if phase == "Failed" else "False", reason, message))
    return _built(situation, wanted)


def _component_conditions(situation: Situation, decision: Decision) -> list[Wanted]:
    found: list[Wanted] = []
    for kind, condition in _COMPONENT_CONDITIONS.items():
        components = [component for component in decision.components if component.kind == kind]
        if not components or (kind in (API_SERVER, INFERENCE) and not components[0].replicas):
            continue  # an inline run has a trainer only
        behind = next((component for component in components if not component.is_ready), None)
        if behind is None:
            lost = _state_lost(situation) if kind == API_SERVER else ""
            found.append((condition, "True", STATE_LOST if lost else "Ready", lost))
        else:
            count = f"{behind.ready} of {behind.replicas} pods are ready" if behind.replicas > 1 else ""
            found.append((condition, "False", _state(situation, behind, decision.phase), count))
    return found


def _copy_conditions(situation: Situation) -> list[Wanted]:
    """The present trainer's report; else what an earlier one has reported."""
    report = situation.progress
    if report is not None and report.copies is not None:
        copies = report.copies
        if copies.problem:
            return [(COPIED, "False", "CopyFailed", sentence(copies.problem))]
        if copies.step:
            return [(COPIED, "True", "Copied", f"Step {copies.step} is in {copies.location}.")]
    known = situation.stored.condition(COPIED)
    return [(COPIED, known.status, known.reason, known.message)] if known is not None else []


def _state_lost(situation: Situation) -> str:
    """What the present API server found when it started and could not use."""
    probe = situation.observed.probes.api_server
    if probe is None or probe.answer is None or not probe.answer.state_lost:
        return ""
    is_present = any(pod.uid == probe.pod_uid for pod in situation.components.api_server.pods)
    return sentence(probe.answer.state_lost) if is_present else ""


def _built(situation: Situation, wanted: Iterable[Wanted]) -> tuple[Condition, ...]:
    return conditions(wanted, situation.stored.conditions, situation.moment, situation.run.metadata.generation)


def write_time(situation: Situation, new: TrainingRunStatus) -> datetime | None:
    """When `new` should replace the stored status: at once if it matters, later if it can wait, None for never."""
    old, settings = situation.stored, situation.settings
    if _without_numbers(new) == _without_numbers(old):
        if _numbers(new) == _numbers(old):
            return None
        if situation.termination is not None:  # the pod that says it may be gone in a moment
            return situation.now
        return later(old.written_at or situation.now, settings.progress_interval_seconds)
    if _can_wait(old, new):
        return later(old.written_at or _begun(situation), settings.settle_seconds)
    return situation.now


def _begun(situation: Situation) -> datetime:
    """When the first object of the run was made; a run may have been queued long before that."""
    made = [seen.created_at for seen in situation.observed.objects.values()]
    asked = situation.run.metadata.creation_timestamp if situation.observed.refused else None
    return earliest([*made, _first_pod_time(situation), asked]) or situation.now


def _can_wait(old: TrainingRunStatus, new: TrainingRunStatus) -> bool:
    """The first sign of life, and small changes inside a phase: all components get ready within a moment or two."""
    if old.observed_generation == -1:
        is_small = not new.restarts and new.condition("Stalled") is None
        is_first = new.phase in ("Pending", "Starting") and not (new.policy or new.queued_since or new.resolved)
        return is_small and is_first and not _is_waiting(new)
    return _essence(old) == _essence(new)


def _is_waiting(status: TrainingRunStatus) -> bool:
    """For something outside the run: no other status will follow soon."""
    reconciling = status.condition("Reconciling")
    return status.is_queued or (reconciling is not None and reconciling.reason.startswith("WaitingFor"))


def _essence(status: TrainingRunStatus) -> tuple[object, ...]:
    stalled = status.condition("Stalled")
    return (
        status.phase,
        status.observed_generation,
        status.restarts,
        status.attempt,
        status.stall,
        status.policy,
        status.resolved,
        status.queued_since,
        stalled and stalled.reason,
        status.results,
        status.export and (status.export.phase, status.export.settings),
        [record.failures for record in _records(status)],
        [record.retries for record in _records(status) if record.retries],
        status.components and status.components.trainer and status.components.trainer.gang,
        _choices(status),
    )


def _records(status: TrainingRunStatus) -> tuple[ComponentStatus, ...]:
    components = status.components
    if components is None:
        return ()
    return (*components.of_the_training, *((components.exporter,) if components.exporter else ()))


def _numbers(status: TrainingRunStatus) -> tuple[object, ...]:
    figures = (status.progress, status.history, status.checkpoint, status.wandb_url, status.export, status.autoscaling)
    return (status.message, *figures)


def _without_numbers(status: TrainingRunStatus) -> TrainingRunStatus:
    ready = status.condition("Ready")
    message = "" if ready is not None and ready.status == "True" else status.message  # it counts the steps
    export = status.export and msgspec.structs.replace(status.export, percent=0, message="")
    return msgspec.structs.replace(
        status,
        autoscaling=_choices(status),
        progress=None,
        history=(),
        evaluations=(),
        checkpoint=None,
        best_checkpoint=None,
        wandb_url="",
        message=message,
        export=export,
        written_at=None,
    )


def _choices(status: TrainingRunStatus) -> tuple[AutoscalingStatus, ...]:
    """What autoscaling has observed changes with every step; what it has chosen does not."""
    return tuple(AutoscalingStatus(name=each.name, target=each.target) for each in status.autoscaling)


def transition_events(old: TrainingRunStatus, new: TrainingRunStatus) -> tuple[Event, ...]:
    return (*_loss_events(old, new), *_phase_events(old, new))


def _phase_events(old: TrainingRunStatus, new: TrainingRunStatus) -> tuple[Event, ...]:
    if new.phase in (old.phase, "Pending"):
        return ()
    return (Event(type="Warning" if new.phase == "Failed" else "Normal", reason=new.phase, message=new.message),)


def _loss_events(old: TrainingRunStatus, new: TrainingRunStatus) -> tuple[Event, ...]:
    """Once for each loss: the condition is stored with the event."""
    before, after = old.condition("APIServerReady"), new.condition("APIServerReady")
    if after is None or after.reason != STATE_LOST or (before is not None and before.message == after.message):
        return ()
    return (Event(type="Warning", reason=STATE_LOST, message=after.message),)
