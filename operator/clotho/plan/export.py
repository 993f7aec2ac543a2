"""After completion a pod of its own turns the checkpoint into files for other programs. It cannot fail the run."""

from datetime import datetime

import msgspec
from msgspec import Struct

from clotho.api.status import ExportedFileStatus, ExportStatus
from clotho.plan.failures import classify
from clotho.plan.model import Action, Create, Event, ObjectKey
from clotho.plan.parts import Part, exporter_of
from clotho.plan.pods import Pod
from clotho.plan.restarts import GiveUp, decide_restart, delete_pod, enter, restart_notice
from clotho.plan.situation import Situation, sentence
from clotho.plan.startup import write_config
from clotho.render.config import fingerprint
from clotho.render.names import exporter_name
from clotho.render.pods import exporter_pod
from clotho_contract.exports import ExportOutcome


class Exporting(Struct, frozen=True, kw_only=True):
    """What the export policy wants; `status` and `part` are None as long as nothing is asked for."""

    status: ExportStatus | None = None
    part: Part | None = None
    actions: tuple[Action, ...] = ()
    notices: tuple[Event, ...] = ()
    wake_at: datetime | None = None

    @property
    def is_at_work(self) -> bool:
        return self.status is not None and not self.status.is_over


def export_weights(situation: Situation) -> Exporting:
    """One pod for these settings; other settings, set at any time, are another export."""
    run, asked = situation.run, situation.run.spec.export
    if asked is None or run.status.phase != "Completed":
        return Exporting(status=run.status.export)
    settings = fingerprint(asked)
    before = run.status.export
    is_new = before is None or before.settings != settings
    status = ExportStatus(phase="Pending", settings=settings) if before is None or is_new else before
    part = exporter_of(run, situation.observed, exporter_name(run.metadata, settings), forget=is_new)
    if status.is_over:
        return Exporting(status=status, part=part)
    if not part.pods:
        return _begin(situation, status, part)
    pod = part.pods[0]
    return _after(situation, status, part, pod) if pod.has_ended else _meanwhile(situation, status, part, pod)


def _begin(situation: Situation, status: ExportStatus, part: Part) -> Exporting:
    """A claim may be for one node at a time, so the trainer goes first."""
    if any(not pod.has_ended for pod in situation.parts.trainer.pods):
        return Exporting(status=_say(status, "Waiting for the trainer's pod to end."), part=part)
    run, settings = situation.run, situation.settings.render
    name = exporter_name(run.metadata, status.settings)
    manifest = exporter_pod(run, settings, name, part.record.restarts)
    actions = (*write_config(situation), Create(key=ObjectKey("Pod", name), manifest=manifest))
    return Exporting(status=_say(status, "The exporting pod is being created."), part=part, actions=actions)


def _meanwhile(situation: Situation, status: ExportStatus, part: Part, pod: Pod) -> Exporting:
    if not pod.is_running:
        return Exporting(status=_say(status, "Waiting for the exporting pod to start."), part=part)
    probe = situation.observed.probes.exporter
    said = probe.answer if probe is not None and probe.pod_uid == pod.uid else None
    words = f"{said.state.capitalize()} {said.artifact}".strip() if said else "Reading the checkpoint"
    changed = msgspec.structs.replace(
        _say(status, f"{words}."),
        phase="Running",
        percent=said.percent if said else status.percent,
        start_time=status.start_time or situation.moment,
    )
    return Exporting(status=changed, part=part)


def _after(situation: Situation, status: ExportStatus, part: Part, pod: Pod) -> Exporting:
    """Finished, to be tried again, or given up; a failed pod goes once its retry is stored and due."""
    words = pod.last_words
    if words is not None and words.reason == "Finished" and words.export is not None:
        return _finished(situation, status, part, words.export)
    if retry := part.retry_of(pod):
        is_due = retry.at <= situation.now
        actions = (delete_pod(pod),) if is_due and not pod.is_terminating else ()
        return Exporting(status=status, part=part, actions=actions, wake_at=None if is_due else retry.at)
    failure = classify(part.title, pod)
    decision = decide_restart(failure, part.record, situation.run.spec.restarts, situation.moment)
    changed = enter(part, failure, decision, situation.moment)
    if isinstance(decision, GiveUp):
        message = sentence(decision.explanation)
        failed = msgspec.structs.replace(_say(status, message), phase="Failed", completion_time=situation.moment)
        notice = Event(type="Warning", reason="ExportFailed", message=message)
        return Exporting(status=failed, part=changed, notices=(notice,))
    notice = restart_notice(failure, decision)
    return Exporting(status=_say(status, notice.message), part=changed, notices=(notice,), wake_at=decision.at)


def _finished(situation: Situation, status: ExportStatus, part: Part, outcome: ExportOutcome) -> Exporting:
    where = f" and registered with Ollama as {outcome.ollama}" if outcome.ollama else ""
    message = f"Exported to {outcome.folder}{where}."
    done = msgspec.structs.replace(
        _say(status, message),
        phase="Completed",
        percent=100,
        folder=outcome.folder,
        bytes=outcome.bytes,
        files=tuple(ExportedFileStatus(path=f.path, bytes=f.bytes, sha256=f.sha256) for f in outcome.files),
        ollama=outcome.ollama,
        completion_time=situation.moment,
    )
    return Exporting(status=done, part=part, notices=(Event(type="Normal", reason="Exported", message=message),))


def _say(status: ExportStatus, message: str) -> ExportStatus:
    return msgspec.structs.replace(status, message=message)
