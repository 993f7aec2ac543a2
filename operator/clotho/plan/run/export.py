"""After the end a pod of its own turns the checkpoint into files for other programs. It cannot fail the run."""

from datetime import datetime

import msgspec
from msgspec import Struct

from clotho.api.status import ExportedFileStatus, ExportStatus
from clotho.plan.failures import classify
from clotho.plan.model import Action, Create, Event, ObjectKey, delete_pod
from clotho.plan.pods import Pod
from clotho.plan.run.components import RunComponent, exporter_of
from clotho.plan.run.restarts import GiveUp, decide_restart, enter, restart_notice
from clotho.plan.run.situation import Situation
from clotho.plan.run.startup import write_config
from clotho.plan.wording import sentence
from clotho.render.config import fingerprint
from clotho.render.merge import TemplateError
from clotho.render.names import exporter_name
from clotho.render.pods import exporter_pod
from clotho_contract.exports import ExportOutcome


class Exporting(Struct, frozen=True, kw_only=True):
    """What the export policy decided; `status` and `component` are None as long as nothing is asked for."""

    status: ExportStatus | None = None
    component: RunComponent | None = None
    actions: tuple[Action, ...] = ()
    notices: tuple[Event, ...] = ()
    wake_at: datetime | None = None

    @property
    def is_at_work(self) -> bool:
        return self.status is not None and not self.status.is_over


def export_weights(situation: Situation) -> Exporting:
    """One pod for these settings; other settings, set at any time, are another export."""
    run, asked = situation.run, situation.run.spec.export
    if asked is None or not run.status.is_finished:
        return Exporting(status=run.status.export)
    settings = fingerprint(asked)
    before = run.status.export
    is_new = before is None or before.settings != settings
    status = ExportStatus(phase="Pending", settings=settings) if before is None or is_new else before
    component = exporter_of(run, situation.observed, exporter_name(run.metadata, settings), forget=is_new)
    if status.is_over:
        return Exporting(status=status, component=component)
    if run.status.phase != "Completed" and run.status.checkpoint is None:
        return _failed(situation, status, component, "no checkpoint was written, so there is nothing to export")
    if not component.pods:
        return _begin(situation, status, component)
    pod = component.pods[0]
    return _after(situation, status, component, pod) if pod.has_ended else _meanwhile(situation, status, component, pod)


def _begin(situation: Situation, status: ExportStatus, component: RunComponent) -> Exporting:
    """A claim may be for one node at a time, so the trainer goes first."""
    if any(not pod.has_ended for pod in situation.components.trainer.pods):
        return Exporting(status=_with_message(status, "Waiting for the trainer's pod to end."), component=component)
    run, settings = situation.run, situation.settings.render
    name = exporter_name(run.metadata, status.settings)
    try:
        manifest = exporter_pod(run, settings, name, component.record.restarts)
    except TemplateError as error:
        return _failed(situation, status, component, str(error))
    actions = (*write_config(situation), Create(key=ObjectKey("Pod", name), manifest=manifest))
    return Exporting(
        status=_with_message(status, "The exporting pod is being created."), component=component, actions=actions
    )


def _meanwhile(situation: Situation, status: ExportStatus, component: RunComponent, pod: Pod) -> Exporting:
    if not pod.is_running:
        return Exporting(status=_with_message(status, "Waiting for the exporting pod to start."), component=component)
    probe = situation.observed.probes.exporter
    report = probe.answer if probe is not None and probe.pod_uid == pod.uid else None
    activity = f"{report.state.capitalize()} {report.artifact}".strip() if report else "Reading the checkpoint"
    changed = msgspec.structs.replace(
        _with_message(status, f"{activity}."),
        phase="Running",
        percent=report.percent if report else status.percent,
        start_time=status.start_time or situation.moment,
    )
    return Exporting(status=changed, component=component)


def _after(situation: Situation, status: ExportStatus, component: RunComponent, pod: Pod) -> Exporting:
    """Finished, to be tried again, or given up; a failed pod goes once its retry is stored and due."""
    reported = pod.termination
    if reported is not None and reported.reason == "Finished" and reported.export is not None:
        return _finished(situation, status, component, reported.export)
    if retry := component.retry_of(pod):
        is_due = retry.at <= situation.now
        actions = (delete_pod(pod),) if is_due and not pod.is_terminating else ()
        return Exporting(status=status, component=component, actions=actions, wake_at=None if is_due else retry.at)
    failure = classify(component.title, pod)
    decision = decide_restart(failure, component.record, situation.run.spec.restarts, situation.moment)
    changed = enter(component, failure, decision, situation.moment)
    if isinstance(decision, GiveUp):
        return _failed(situation, status, changed, decision.explanation)
    notice = restart_notice(failure, decision)
    return Exporting(
        status=_with_message(status, notice.message), component=changed, notices=(notice,), wake_at=decision.at
    )


def _failed(situation: Situation, status: ExportStatus, component: RunComponent, explanation: str) -> Exporting:
    message = sentence(explanation)
    failed = msgspec.structs.replace(_with_message(status, message), phase="Failed", completion_time=situation.moment)
    notice = Event(type="Warning", reason="ExportFailed", message=message)
    return Exporting(status=failed, component=component, notices=(notice,))


def _finished(situation: Situation, status: ExportStatus, component: RunComponent, outcome: ExportOutcome) -> Exporting:
    where = f" and registered with Ollama as {outcome.ollama}" if outcome.ollama else ""
    message = f"Exported to {outcome.folder}{where}."
    done = msgspec.structs.replace(
        _with_message(status, message),
        phase="Completed",
        percent=100,
        folder=outcome.folder,
        bytes=outcome.bytes,
        files=tuple(ExportedFileStatus(path=f.path, bytes=f.bytes, sha256=f.sha256) for f in outcome.files),
        ollama=outcome.ollama,
        completion_time=situation.moment,
    )
    return Exporting(
        status=done, component=component, notices=(Event(type="Normal", reason="Exported", message=message),)
    )


def _with_message(status: ExportStatus, message: str) -> ExportStatus:
    return msgspec.structs.replace(status, message=message)
