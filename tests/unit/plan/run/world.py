"""A small, pure cluster: takes a plan's writes as the API server would; the test plays kubelet, user and clock."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from clotho.api.environment import AnyEnvironment
from clotho.api.names import COMPONENT_LABEL, FINGERPRINT_ANNOTATION
from clotho.api.status import TrainingRunStatus
from clotho.api.training_policy import AnyPolicy
from clotho.api.training_run import TrainingRun, parse
from clotho.plan.model import (
    Action,
    Apply,
    Create,
    Delete,
    ObjectKey,
    ObjectSeen,
    Observed,
    Plan,
    Probe,
    Probes,
    Reference,
)
from clotho.plan.ownership import lost_marks, owners_in
from clotho.plan.pods import parse_pod
from clotho.plan.run.plan import plan
from clotho.plan.settings import PlanSettings
from clotho.plan.shapes import Condition
from clotho.plan.workloads import KueueSeen, Workload
from clotho.render.objects import CONFIG_KEY, contents_digest
from clotho_contract.progress import Progress
from clotho_contract.termination import Reason, Termination, encode
from rig.fake_api import merged

START = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)
Body = dict[str, Any]


def minimal_spec(**changes: Any) -> Body:
    return {
        "model": {"name": "Qwen/Qwen3-8B"},
        "environments": [{"name": "letters", "replicas": 2, "config": {"group_size": 8}}],
        "training": {"steps": 100},
        **changes,
    }


class World:
    def __init__(self, spec: Body | None = None, settings: PlanSettings | None = None) -> None:
        self.now = START
        self.settings = settings or PlanSettings()
        self.version = 1
        self.generation = 1
        self.spec = spec or minimal_spec()
        self.status: Body = {"observedGeneration": -1, "phase": "Pending"}
        self.pods: dict[str, Body] = {}
        self.objects: dict[ObjectKey, ObjectSeen] = {}
        self.probes = Probes()
        self.environments: dict[str, AnyEnvironment] = {}
        self.catalogue: tuple[str, ...] = ()
        self.policies: tuple[AnyPolicy, ...] = ()
        self.runs_ahead = 0
        self.missing: tuple[Reference, ...] = ()
        self.labels: dict[str, str] = {}
        self.kueue: KueueSeen | None = None
        self.is_deleted = False
        self.born = 0
        self.events: list[str] = []
        self.status_writes = 0

    # What the operator sees.

    @property
    def run(self) -> TrainingRun:
        body = {
            "metadata": {
                "name": "demo",
                "namespace": "team",
                "uid": "0123abcd-0000-4000-8000-000000000000",
                "generation": self.generation,
                "resourceVersion": str(self.version),
                "creationTimestamp": stamp(START),
                "labels": self.labels,
            },
            "spec": self.spec,
            "status": self.status,
        }
        run = parse(body)
        assert isinstance(run, TrainingRun), run
        return run

    @property
    def observed(self) -> Observed:
        return Observed(
            pods=tuple(parse_pod(pod) for pod in self.pods.values()),
            objects=dict(self.objects),
            probes=self.probes,
            environments=self.environments,
            catalogue=self.catalogue,
            missing=self.missing,
            policies=self.policies,
            runs_ahead=self.runs_ahead,
            kueue=self.kueue,
        )

    def plan(self) -> Plan[TrainingRunStatus]:
        return plan(self.run, self.observed, self.now, self.settings)

    @property
    def now_status(self) -> TrainingRunStatus:
        return self.run.status

    @property
    def phase(self) -> str:
        return self.now_status.phase

    # What the operator does.

    def reconcile(self) -> Plan[TrainingRunStatus]:
        """One pass, all of it."""
        return self.carry_out(self.plan())

    def carry_out(self, wanted: Plan[TrainingRunStatus], writes: int | None = None) -> Plan[TrainingRunStatus]:
        """`writes`: how many of them happen before the operator is killed."""
        for count, action in enumerate(wanted.actions):
            if writes is not None and count >= writes:
                return wanted
            self.write(action)
        if wanted.status is not None and (writes is None or writes > len(wanted.actions)):
            self.version += 1
            self.status_writes += 1
            self.status = msgspec.json.decode(msgspec.json.encode(wanted.status))
            self.events += [event.reason for event in wanted.events]
        return wanted

    def write(self, action: Action) -> None:
        self.version += 1
        match action:
            case Create(key=key, manifest=manifest) if key.kind == "Pod" and key.name in self.pods:
                change = lost_marks(self.pods[key.name]["metadata"], manifest["metadata"])
                assert change, f"{key.name} created over a pod that exists"
                self._touch(self.pods[key.name])
                self.pods[key.name]["metadata"] = merged(self.pods[key.name]["metadata"], change)
            case Create(key=key, manifest=manifest) if key.kind == "Pod":
                pod = deepcopy(manifest)
                self.born += 1
                pod["metadata"] |= {
                    "uid": f"pod-{self.born}",
                    "resourceVersion": str(self.version),
                    "creationTimestamp": stamp(self.now),
                }
                pod["status"] = {"phase": "Pending"}
                self.pods[key.name] = pod
            case _ if action.key.kind == "Workload":
                self.write_workload(action)
            case Create(key=key, manifest=manifest) | Apply(key=key, manifest=manifest):
                old, metadata = self.objects.get(key), manifest["metadata"]
                is_claim = key.kind == "PersistentVolumeClaim"
                assert old is None or isinstance(action, Apply) or is_claim, f"{key} created over one that exists"
                has_new_tokens = old is not None and not old.has_tokens
                self.objects[key] = ObjectSeen(
                    uid=old.uid if old else f"object-{self.version}",
                    resource_version=str(self.version),
                    created_at=old.created_at if old else self.now.replace(microsecond=0),
                    fingerprint=metadata.get("annotations", {}).get(FINGERPRINT_ANNOTATION, ""),
                    labels=metadata["labels"],
                    owners=owners_in(metadata),
                    spec=deepcopy(manifest.get("spec", {})),
                    contents=contents_digest(manifest.get("data", {}).get(CONFIG_KEY, "")),
                    token_revision=str(self.version) if has_new_tokens else (old.token_revision if old else ""),
                )
            case Delete(key=key) if key.kind == "TrainingRun":
                self.is_deleted = True
            case Delete(key=key) if key.kind != "Pod":
                del self.objects[key]
            case Delete(key=key, uid=uid, grace_seconds=grace):
                if self.pods[key.name]["metadata"]["uid"] == uid:
                    self.delete_pod(key.name, grace)

    def write_workload(self, action: Action) -> None:
        assert self.kueue is not None
        self.kueue = msgspec.structs.replace(self.kueue, workload=self._written(self.kueue.workload, action))

    def _written(self, found: Workload | None, action: Action) -> Workload | None:
        match action:
            case Delete(uid=uid, resource_version=version):
                assert found is not None
                assert (found.metadata.uid, found.metadata.resource_version) == (uid, version)
                return None
            case Apply(manifest=manifest, subresource="status"):
                assert found is not None
                (applied,) = manifest["status"]["conditions"]
                new = msgspec.convert(applied, Condition)
                others = tuple(each for each in found.status.conditions if each.type != new.type)
                status = msgspec.structs.replace(found.status, conditions=(*others, new))
                return msgspec.structs.replace(found, status=status)
            case Create(manifest=manifest):
                assert found is None, "created over one that exists"
                metadata = {"uid": f"workload-{self.version}", "resourceVersion": str(self.version)}
                return msgspec.convert(manifest | {"metadata": manifest["metadata"] | metadata}, Workload)
        raise AssertionError(f"a Workload is never changed: {action}")

    def settle(self, passes: int = 30) -> None:
        """Reconcile until a pass changes nothing."""
        for _ in range(passes):
            before = (self.version, self.now)
            wanted = self.reconcile()
            if (self.version, self.now) == before:
                if wanted.wake_at is None or wanted.wake_at > self.now + timedelta(seconds=2):
                    return
                self.now = max(self.now, wanted.wake_at)
        raise AssertionError(f"no rest after {passes} passes: {self.plan()}")

    # What the kubelet, the scheduler and people do.

    def named(self, component: str, index: int = 0) -> str:
        names = sorted(
            name for name, pod in self.pods.items() if pod["metadata"]["labels"][COMPONENT_LABEL] == component
        )
        return names[index]

    def components(self) -> list[str]:
        return sorted(pod["metadata"]["labels"][COMPONENT_LABEL] for pod in self.pods.values())

    def delete_pod(self, name: str, grace: int | None = None) -> None:
        """A pod that has ended goes at once; a living one is given its grace period."""
        pod = self.pods[name]
        if pod["status"]["phase"] in ("Succeeded", "Failed", "Pending"):
            del self.pods[name]
        elif "deletionTimestamp" not in pod["metadata"]:
            self._touch(pod)
            grace = pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
            pod["metadata"]["deletionTimestamp"] = stamp(self.now + timedelta(seconds=grace))

    def terminate(self, component: str = "") -> None:
        """Every pod that was asked to end is gone."""
        for name, pod in list(self.pods.items()):
            is_meant = component in ("", pod["metadata"]["labels"][COMPONENT_LABEL])
            if is_meant and "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]

    def start_pod(self, name: str, *, ready: bool = True) -> None:
        pod = self.pods[name]
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            return
        self._touch(pod)
        pod["spec"]["nodeName"] = "node-1"
        pod["status"] = {
            "phase": "Running",
            "podIP": "127.1.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "main", "ready": ready, "state": {"running": {}}}],
        }

    def start_all(self) -> None:
        for name in self.pods:
            self.start_pod(name)

    def end_pod(
        self,
        name: str,
        code: int = 1,
        *,
        reason: Reason | None = None,
        step: int | None = None,
        container_reason: str = "",
        pod_reason: str = "",
        message: str = "it broke",
        progress: Progress | None = None,
    ) -> None:
        pod = self.pods[name]
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            return
        self._touch(pod)
        words = Termination(reason=reason, message=message, step=step, progress=progress) if reason else None
        ended = {
            "exitCode": code,
            "reason": container_reason or "Error",
            "message": encode(words).decode() if words else "",
        }
        pod["status"] = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "reason": pod_reason,
            "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
        }

    def make_progress(self, step: int, state: str = "training", total_steps: int = 100, **more: Any) -> None:
        uid = self.pods[self.named("trainer")]["metadata"]["uid"]
        moment = self.now.isoformat()
        report = Progress(state=state, step=step, total_steps=total_steps, last_step_time=moment, **more)
        probe = Probe(pod_uid=uid, taken_at=self.now, answer=report)
        self.probes = msgspec.structs.replace(self.probes, trainer=probe)

    def change_spec(self, **changes: Any) -> None:
        self.spec = self.spec | changes
        self.generation += 1
        self.version += 1

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def _touch(self, pod: Body) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)


def running_world(**changes: Any) -> World:
    """A run that is up and training."""
    world = World(minimal_spec(**changes))
    world.settle()
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    return world


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
