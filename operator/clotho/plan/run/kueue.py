"""Kueue decides when a run with a queue label may have pods: one Workload a run holds the quota of all of them.

Evicted, the run stops in order with a last checkpoint, gives its quota back and is queued again. A crash keeps the
Workload, and with it the quota. A Workload is never changed: what is to be different is another Workload.
"""

from typing import Final

import msgspec

from clotho.api.names import (
    ENVIRONMENT,
    FINGERPRINT_ANNOTATION,
    INFERENCE,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    REPLICAS_ANNOTATION,
)
from clotho.api.phases import RESTING_PHASES, STARTED_PHASES, Phase
from clotho.api.status import QUEUED
from clotho.api.training_run import Autoscaling, EnvironmentSpec, TrainingRun
from clotho.plan.model import Action, Apply, Create, Delete, Event, Manifest, ObjectKey
from clotho.plan.references import LOOK_AGAIN_SECONDS
from clotho.plan.run.placement import environment_pod_set, pod_set_name
from clotho.plan.run.situation import Decision, Situation
from clotho.plan.run.startup import render_anywhere
from clotho.plan.run.stop import stop_pods
from clotho.plan.times import later
from clotho.plan.wording import full_stop, sentence
from clotho.plan.workloads import ConditionType, KueueSeen, Workload
from clotho.render.names import base_name
from clotho.render.workload import PodSet, workload, workload_condition

_ABSENCES: Final = {
    "NotInstalled": "the cluster does not have its Workloads (kueue.x-k8s.io/v1beta2). Install Kueue",
    "Forbidden": "the operator has no right to read its Workloads. Set rbac.kueue in the operator's chart",
}


def wait_for_quota(situation: Situation) -> Decision | None:
    """None: the run may have pods."""
    seen = situation.observed.kueue
    if seen is None or not _queue(situation.run):
        return None
    if seen.absence:
        has_pods = any(component.pods for component in situation.components)
        why = f"the label {QUEUE_LABEL} asks for it, but {_ABSENCES[seen.absence]}, or remove the label."
        return None if has_pods else _waiting(situation, why)
    if seen.workload is not None and seen.workload.is_admitted and not _is_outdated(situation, seen.workload):
        return None
    if stopping := stop_pods(situation):
        return _evicted(situation, stopping, seen.workload)
    if (name := situation.run.metadata.labels.get(PRIORITY_LABEL)) and seen.priority is None:
        return _waiting(situation, f"WorkloadPriorityClass {name} (label {PRIORITY_LABEL}) does not exist.")
    return _queued(situation, seen)


def _queued(situation: Situation, seen: KueueSeen) -> Decision:
    return Decision(
        phase="Pending",
        reason=QUEUED,
        message=_queued_message(situation, seen.workload),
        components=situation.components,
        actions=_renewed(situation, seen),
        is_in_kueue=True,
    )


def _waiting(situation: Situation, why: str) -> Decision:
    """Nothing of this is watched."""
    return Decision(
        phase="Pending",
        reason="WaitingForKueue",
        message=f"Waiting for Kueue: {why}",
        components=situation.components,
        wake_at=later(situation.now, LOOK_AGAIN_SECONDS),
        is_in_kueue=True,
    )


def _evicted(situation: Situation, stopping: Decision, found: Workload | None) -> Decision:
    """Also where somebody deleted the Workload: pods without quota take what Kueue gives to others."""
    evicted = found.condition("Evicted") if found is not None else None
    why = f"Evicted by Kueue: {evicted.message}" if evicted is not None else "The run has no quota from Kueue"
    is_news = situation.stored.phase in STARTED_PHASES
    notices = (Event(type="Warning", reason="Evicted", message=full_stop(why)),) if is_news else ()
    return msgspec.structs.replace(stopping, message=f"{full_stop(why)} {stopping.message}", notices=notices)


def _queued_message(situation: Situation, found: Workload | None) -> str:
    """In Kueue's own words, where it has any."""
    refused = situation.observed.refused.get(_key(situation.run))
    if refused is not None:
        return sentence(f"the API server refused the Workload of the run: {refused.message}")
    where = f"Queued in LocalQueue {_queue(situation.run)}"
    condition = found.condition(_decisive(found)) if found is not None else None
    return full_stop(f"{where}: {condition.message}" if condition is not None and condition.message else where)


def _decisive(found: Workload) -> ConditionType:
    if _is_void(found) or not found.spec.active:
        return "Evicted"
    return "Admitted" if found.holds_quota else "QuotaReserved"


def _is_void(found: Workload) -> bool:
    """It never admits the run again: Kueue waits until its quota is given back."""
    return found.has("Finished") or (found.has("Evicted") and found.holds_quota)


def _renewed(situation: Situation, seen: KueueSeen) -> tuple[Action, ...]:
    """A Workload where there is none, and another where it was evicted, or where the run has changed while queued.

    One that was deactivated stays so: its successor waits until somebody sets it active.
    """
    found = seen.workload
    manifest = _manifest(situation, seen.priority, is_active=found is None or found.spec.active)
    create = Create(key=_key(situation.run), manifest=manifest)
    if found is None:
        return (create,)
    is_needed = _is_void(found) or found.fingerprint != _fingerprint(manifest)
    return (_delete(found), create) if is_needed and not found.metadata.is_being_deleted else ()


def _is_outdated(situation: Situation, found: Workload) -> bool:
    """The spec may change until the trainer starts, also after the admission."""
    return not situation.stored.attempt and found.fingerprint != _fingerprint(_manifest(situation))


def _fingerprint(manifest: Manifest) -> str:
    return str(manifest["metadata"]["annotations"][FINGERPRINT_ANNOTATION])


def _manifest(situation: Situation, priority: int | None = None, *, is_active: bool = True) -> Manifest:
    most = {each.name: each.most_replicas for each in situation.run.spec.environments}  # with autoscaling, its maximum
    pod_sets = [
        PodSet(name=pod_set_name(each), count=count, pod=render_anywhere(situation, each, 0, 0))
        for each in situation.components
        if (count := most[each.name] if each.kind == ENVIRONMENT else each.replicas)
    ]
    return workload(situation.run.metadata, pod_sets, priority=priority, is_active=is_active)


def within_quota(run: TrainingRun, seen: KueueSeen | None) -> TrainingRun:
    """What was scaled beyond what was admitted gets the rest when the run is queued the next time."""
    if seen is None or seen.workload is None or not seen.workload.is_admitted:
        return run
    try:
        admitted = msgspec.json.decode(seen.workload.metadata.annotations[REPLICAS_ANNOTATION], type=dict[str, int])
    except (LookupError, msgspec.MsgspecError):  # somebody edited it
        return run

    def limit(asked: EnvironmentSpec) -> EnvironmentSpec:
        most = admitted.get(environment_pod_set(asked.name), 0)
        scaling = asked.autoscaling and Autoscaling(max=max(1, min(asked.autoscaling.max, most)))
        return msgspec.structs.replace(asked, replicas=min(asked.replicas, most), autoscaling=scaling)

    spec = msgspec.structs.replace(
        run.spec,
        environments=tuple(limit(asked) for asked in run.spec.environments),
        inference=msgspec.structs.replace(
            run.spec.inference, replicas=min(run.spec.inference.replicas, admitted.get(INFERENCE, 0))
        ),
    )
    return msgspec.structs.replace(run, spec=spec)


def report_pods_ready(situation: Situation, phase: Phase) -> tuple[Apply, ...]:
    """For Kueue's waitForPodsReady, which evicts a Workload whose pods do not become ready, or ready again, in time."""
    found = _known(situation)
    is_ready = phase == "Running"
    if found is None or not _queue(situation.run) or is_ready == found.has("PodsReady"):
        return ()
    if is_ready:
        reason, message = ("Recovered" if found.condition("PodsReady") else "Started"), "All pods are ready."
    else:
        reason, message = "WaitForRecovery", "A pod has failed or is not ready."
    condition = {
        "type": "PodsReady",
        "status": "True" if is_ready else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": f"{situation.moment:%Y-%m-%dT%H:%M:%SZ}",
    }
    manifest = workload_condition(situation.run.metadata, condition)
    return (Apply(key=_key(situation.run), manifest=manifest, subresource="status"),)


def release_quota(situation: Situation, decision: Decision) -> Decision:
    """Refused, suspended or finished, a run needs none once its pods have ended; nor does one without the label."""
    found = _known(situation)
    if found is None or found.metadata.is_being_deleted:
        return decision
    is_live = any(not pod.has_ended for component in situation.components for pod in component.pods)
    is_over = (decision.phase in RESTING_PHASES or decision.is_refused) and not is_live
    if not is_over and _queue(situation.run):
        return decision
    return msgspec.structs.replace(decision, actions=(*decision.actions, _delete(found)))


def _known(situation: Situation) -> Workload | None:
    return situation.observed.kueue.workload if situation.observed.kueue is not None else None


def _delete(found: Workload) -> Delete:
    metadata = found.metadata
    return Delete(
        key=ObjectKey("Workload", metadata.name), uid=metadata.uid, resource_version=metadata.resource_version
    )


def _key(run: TrainingRun) -> ObjectKey:
    return ObjectKey("Workload", base_name(run.metadata))


def _queue(run: TrainingRun) -> str:
    return run.metadata.labels.get(QUEUE_LABEL, "")
