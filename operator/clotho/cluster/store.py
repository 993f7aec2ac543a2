"""All caches together: what the operator knows of every run, and who must hear when it changes."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from clotho.api import training_policy
from clotho.api.metadata import Metadata
from clotho.api.names import FINGERPRINT_ANNOTATION, RUN_LABEL, UID_LABEL
from clotho.api.training_policy import AnyPolicy
from clotho.api.training_run import TrainingRun, UnreadableRun, parse
from clotho.cluster.cache import Cache, RunKey
from clotho.plan.model import Kind, ObjectKey, ObjectSeen
from clotho.plan.pods import Pod
from clotho_contract.names import TOKEN_VARIABLE

AnyRun = TrainingRun | UnreadableRun


class Child(Struct, frozen=True):
    """An object of which only the metadata matters."""

    metadata: Metadata


class SecretData(Struct, frozen=True):
    token: str | None = field(name=TOKEN_VARIABLE, default=None)


class SecretChild(Struct, frozen=True):
    """The run's Secret. Of its contents only the token is kept, and it goes no further than the header of a probe."""

    metadata: Metadata
    data: SecretData = SecretData()


Object = Pod | Child | SecretChild | AnyRun | AnyPolicy
TYPES: Final[Mapping[Kind, type[Pod] | type[Child] | type[SecretChild]]] = {"Pod": Pod, "Secret": SecretChild}


def owner(metadata: Metadata) -> RunKey | None:
    run = metadata.labels.get(RUN_LABEL)
    return RunKey(metadata.namespace, run) if run else None


def run_key(metadata: Metadata) -> RunKey:
    return RunKey(metadata.namespace, metadata.name)


class Store:
    """`changed` is called with the run whose picture changed, unless we changed it ourselves."""

    def __init__(self) -> None:
        self.runs: Cache[AnyRun] = Cache(run_key)
        self.policies: Cache[AnyPolicy] = Cache(lambda _: None)
        self.pods: Cache[Pod] = Cache(owner)
        self.secrets: Cache[SecretChild] = Cache(owner)
        self.children: dict[Kind, Cache[Child]] = {
            kind: Cache(owner) for kind in ("Service", "PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget")
        }
        self._caches: dict[Kind, Cache[Any]] = {
            "TrainingRun": self.runs,
            "TrainingPolicy": self.policies,
            "Pod": self.pods,
            "Secret": self.secrets,
            **self.children,
        }
        self.changed: Callable[[RunKey], None] = lambda _: None
        self.pod_ended: Callable[[RunKey, Pod], None] = lambda _, __: None

    def cache(self, kind: Kind) -> Cache[Any]:
        return self._caches[kind]

    def handle_event(self, kind: Kind, is_deleted: bool, body: Mapping[str, Any]) -> None:
        """Take in what a watch reported."""
        cache, head = self.cache(kind), body["metadata"]
        if kind == "Pod":
            self._note_last_words(body)
        if is_deleted:
            metadata = msgspec.convert(head, Metadata)
            if cache.remove(metadata):
                self.announce(kind, metadata)
        elif not cache.has(head.get("namespace", ""), head["name"], head["resourceVersion"]):
            item = decode(kind, body)
            if cache.observe(item):
                self.announce(kind, item.metadata)

    def _note_last_words(self, body: Mapping[str, Any]) -> None:
        """A pod may end and vanish between two passes: what it said then must not vanish with it."""
        containers = body.get("status", {}).get("containerStatuses", ())
        if any("terminated" in container.get("state", {}) for container in containers):
            pod = msgspec.convert(body, Pod)
            run = owner(pod.metadata)
            if run is not None:
                self.pod_ended(run, pod)

    def forget(self, kind: Kind, metadata: Metadata) -> None:
        """A list or a 404 has shown that the object is gone."""
        if self.cache(kind).remove(metadata):
            self.announce(kind, metadata)

    def announce(self, kind: Kind, metadata: Metadata) -> None:
        if kind == "TrainingPolicy":
            for each in self.runs_in(metadata.namespace):
                self.changed(run_key(each.metadata))
            return
        run = run_key(metadata) if kind == "TrainingRun" else owner(metadata)
        if run is not None:
            self.changed(run)

    def run(self, key: RunKey) -> AnyRun | None:
        return self.runs.get(key.namespace, key.name)

    def runs_in(self, namespace: str) -> tuple[AnyRun, ...]:
        return tuple(run for run in self.runs.all() if run.metadata.namespace == namespace)

    def policies_in(self, namespace: str) -> tuple[AnyPolicy, ...]:
        return tuple(policy for policy in self.policies.all() if policy.metadata.namespace == namespace)

    def pods_of(self, key: RunKey, uid: str) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods.of_run(key) if pod.metadata.labels.get(UID_LABEL) == uid)

    def secret_of(self, key: RunKey, uid: str) -> SecretChild | None:
        return next((s for s in self.secrets.of_run(key) if s.metadata.labels.get(UID_LABEL) == uid), None)

    def objects_of(self, key: RunKey, uid: str) -> dict[ObjectKey, ObjectSeen]:
        found: dict[ObjectKey, ObjectSeen] = {}
        sources: list[tuple[Kind, Iterable[Child | SecretChild]]] = [("Secret", self.secrets.of_run(key))]
        sources += [(kind, cache.of_run(key)) for kind, cache in self.children.items()]
        for kind, items in sources:
            for item in items:
                if item.metadata.labels.get(UID_LABEL) == uid:
                    found[ObjectKey(kind, item.metadata.name)] = _seen(item.metadata)
        return found


def _seen(metadata: Metadata) -> ObjectSeen:
    return ObjectSeen(
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        created_at=metadata.creation_timestamp or datetime.now(UTC),
        fingerprint=metadata.annotations.get(FINGERPRINT_ANNOTATION, ""),
        is_terminating=metadata.is_being_deleted,
    )


def decode(kind: Kind, body: Mapping[str, Any]) -> Object:
    if kind == "TrainingRun":
        return parse(body)
    if kind == "TrainingPolicy":
        return training_policy.parse(body)
    return msgspec.convert(body, TYPES.get(kind, Child))
