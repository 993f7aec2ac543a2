"""All caches together: what is known of every run, and what has to be reconciled when it changes."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.json import Decoder

from clotho.api import environment, inference_tests, training_policy
from clotho.api.environment import AnyEnvironment
from clotho.api.inference_tests import AnyTest, InferenceTest
from clotho.api.metadata import Metadata
from clotho.api.names import (
    FINGERPRINT_ANNOTATION,
    KIND,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    OWNER_LABELS,
    PLURALS,
    TOKEN_DIGESTS_ANNOTATION,
    TOKENS_ANNOTATION,
    UID_LABEL,
    OwnerKind,
)
from clotho.api.training_policy import AnyPolicy
from clotho.api.training_run import TrainingRun, UnreadableRun, parse
from clotho.cluster.cache import TOMBSTONES, Cache, Key, version
from clotho.cluster.kinds import LABELLED_KINDS
from clotho.plan.model import Kind, ObjectKey, ObjectSeen
from clotho.plan.pods import Pod, parse_pod
from clotho.plan.workloads import Workload, parse_workload
from clotho.render.objects import CONFIG_KEY, TOKEN_KEYS, are_as_recorded, contents_digest
from clotho_contract.names import OPERATOR_TOKEN_VARIABLE, TOKEN_VARIABLE

log = logging.getLogger(__name__)
_UNDECODABLE: Final = (msgspec.MsgspecError, LookupError, RecursionError)
AnyRun = TrainingRun | UnreadableRun
AnyOwner = AnyRun | AnyEnvironment | AnyTest


class Child(Struct, frozen=True):
    metadata: Metadata
    spec: Mapping[str, Any] = field(default_factory=dict)


class _Secret(Struct, frozen=True):
    metadata: Metadata
    data: Mapping[str, str] = field(default_factory=dict)


class SecretChild(Struct, frozen=True, kw_only=True):
    """The run's Secret. Only the operator's token is kept of it, and goes no further than the header of a probe."""

    metadata: Metadata
    operator_token: str = ""  # as it stands there, in base64
    contents: str = ""  # digest of the config file
    has_tokens: bool = False  # all of them, as they were made


def parse_secret(body: Mapping[str, Any]) -> SecretChild:
    found = msgspec.convert(body, _Secret)
    digests = found.metadata.annotations.get(TOKEN_DIGESTS_ANNOTATION, "")
    return SecretChild(
        metadata=found.metadata,
        # the second is of a run older than tokens per role
        operator_token=found.data.get(OPERATOR_TOKEN_VARIABLE) or found.data.get(TOKEN_VARIABLE, ""),
        contents=contents_digest(found.data.get(CONFIG_KEY, "")),
        has_tokens=all(found.data.get(key) for key in TOKEN_KEYS) and are_as_recorded(found.data, digests),
    )


Object = Pod | Child | SecretChild | Workload | AnyOwner | AnyPolicy


def owner(metadata: Metadata) -> Key | None:
    for kind, label in OWNER_LABELS.items():
        if name := metadata.labels.get(label):
            return Key(metadata.namespace, name, kind)
    return None


def run_key(metadata: Metadata) -> Key:
    return Key(metadata.namespace, metadata.name)


def key_of(item: AnyOwner) -> Key:
    return Key(item.metadata.namespace, item.metadata.name, item.kind)


def _keys(kind: OwnerKind) -> Callable[[Metadata], Key]:
    return lambda metadata: Key(metadata.namespace, metadata.name, kind)


class Store:
    """`changed(key)` is called when the state of an object of ours changed, unless we changed it ourselves.

    `pod_ended(key, pod)` is called for every state in which a container of a pod has ended, and `on_undecodable(kind)`
    for every object that is skipped because it cannot be decoded.
    """

    def __init__(
        self,
        changed: Callable[[Key], None] = lambda _: None,
        pod_ended: Callable[[Key, Pod], None] = lambda _, __: None,
        on_undecodable: Callable[[Kind], None] = lambda _: None,
    ) -> None:
        self.changed, self._pod_ended, self._on_undecodable = changed, pod_ended, on_undecodable
        self.runs: Cache[AnyRun] = Cache(_keys(KIND))
        self.removed_runs: dict[Key, AnyRun] = {}  # as last known; until their removal is reconciled
        self.environments: Cache[AnyEnvironment] = Cache(_keys("Environment"))
        self.tests: Cache[AnyTest] = Cache(_keys("InferenceTest"))
        self.policies: Cache[AnyPolicy] = Cache(lambda _: None)
        self.pods: Cache[Pod] = Cache(owner)
        self.secrets: Cache[SecretChild] = Cache(owner)
        self.workloads: Cache[Workload] = Cache(owner)
        self.children: dict[Kind, Cache[Child]] = {
            kind: Cache(owner) for kind in ("Service", "PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget")
        }
        self._caches: dict[Kind, Cache[Any]] = {
            "TrainingRun": self.runs,
            "Environment": self.environments,
            "InferenceTest": self.tests,
            "TrainingPolicy": self.policies,
            "Pod": self.pods,
            "Secret": self.secrets,
            "Workload": self.workloads,
            **self.children,
        }

    def cache(self, kind: Kind) -> Cache[Any]:
        return self._caches[kind]

    def handle_event(self, kind: Kind, is_deleted: bool, body: Mapping[str, Any]) -> None:
        """Take in what a watch reported; what cannot be decoded is skipped."""
        try:
            head = body["metadata"]
            if is_deleted or not self.cache(kind).has(head.get("namespace", ""), head["name"], head["resourceVersion"]):
                self._handle(kind, is_deleted, decode(kind, body))
        except _UNDECODABLE as error:
            self._report(kind, body, error)

    def handle_json(self, kind: Kind, is_deleted: bool, body: bytes) -> Metadata | None:
        """The same for a child as the API server sent it; None when it was skipped."""
        try:
            item = _CHILDREN.get(kind, _CHILD).decode(body)
        except _UNDECODABLE as error:
            self._report(kind, msgspec.json.decode(body), error)
            return None
        self._handle(kind, is_deleted, item)
        return item.metadata

    def take_in(self, kind: Kind, body: Mapping[str, Any]) -> Object | None:
        """Take in what was listed, read or written; None when it cannot be decoded and was skipped."""
        try:
            item = decode(kind, body)
        except _UNDECODABLE as error:
            self._report(kind, body, error)
            return None
        if _is_selected(kind, item.metadata):
            self._observe(kind, item)
        else:
            self._disregard(kind, item.metadata)
        return item

    def _observe(self, kind: Kind, item: Object) -> bool:
        """The removal of a run may be reported after its successor of the same name, or never."""
        known = self.cache(kind).get(item.metadata.namespace, item.metadata.name)
        is_new = self.cache(kind).observe(item)
        if is_new and isinstance(known, TrainingRun | UnreadableRun) and known.metadata.uid != item.metadata.uid:
            self._note_removal(known)
        return is_new

    def _disregard(self, kind: Kind, metadata: Metadata) -> None:
        """As if it were not there: the plan creates it, and the writer finds it and puts the label back."""
        known = self.cache(kind).get(metadata.namespace, metadata.name)
        if known is not None and version(known.metadata) <= version(metadata):
            self.cache(kind).remove(known.metadata, version(metadata))

    def _note_removal(self, run: AnyRun) -> None:
        self.removed_runs[key_of(run)] = run
        while len(self.removed_runs) > TOMBSTONES:  # on a replica that does not lead
            del self.removed_runs[next(iter(self.removed_runs))]

    def _report(self, kind: Kind, body: Mapping[str, Any], error: Exception) -> None:
        metadata = body.get("metadata") or {}
        named = f"{metadata.get('namespace')}/{metadata.get('name')}"
        log.error("%s %s cannot be decoded and is skipped: %s", kind, named, str(error) or type(error).__name__)
        self._on_undecodable(kind)

    def _handle(self, kind: Kind, is_deleted: bool, item: Object) -> None:
        self._note_termination(item)
        if is_deleted:
            self.forget(kind, item.metadata)
            return
        before = self.cache(kind).get(item.metadata.namespace, item.metadata.name)
        if self._observe(kind, item):
            self.announce(kind, item.metadata)
            if before is not None and owner(before.metadata) != owner(item.metadata):
                self.announce(kind, before.metadata)  # it lost the object: the label was edited

    def _note_termination(self, item: Object) -> None:
        """A pod may end and vanish between two reconciles: its termination message must not vanish with it."""
        if isinstance(item, Pod) and any(each.state.terminated for each in item.status.container_statuses):
            run = owner(item.metadata)
            if run is not None:
                self._pod_ended(run, item)

    def forget(self, kind: Kind, metadata: Metadata, at_version: float | None = None) -> None:
        """A watch reported its removal, or a list does not have it any more: at its own version, unless another one is
        given."""
        known = self.cache(kind).get(metadata.namespace, metadata.name)
        if self.cache(kind).remove(metadata, version(metadata) if at_version is None else at_version):
            if isinstance(known, TrainingRun | UnreadableRun):
                self._note_removal(known)
            self.announce(kind, metadata if known is None else known.metadata)  # it may have lost its labels since

    def forget_absent(self, kind: Kind, scope: str | None, present: Iterable[Metadata], version: int) -> list[str]:
        """What a list of that namespace, or of all, no longer has at that version; the names of what was known."""
        absent = [item.metadata for item in self.cache(kind).absent_from(present, version)]
        gone = [metadata for metadata in absent if scope in (None, metadata.namespace)]
        for metadata in gone:
            self.forget(kind, metadata)
        return [metadata.name for metadata in gone]

    def announce(self, kind: Kind, metadata: Metadata) -> None:
        if kind == "TrainingPolicy":
            for each in self.owners():
                if each.metadata.namespace == metadata.namespace:
                    self.changed(key_of(each))
            return
        for key in _affected(kind, metadata):
            self.changed(key)
        if kind == "Environment":
            self.announce_to_users(metadata)

    def announce_to_users(self, environment: Metadata) -> None:
        """Also after our own writes: the description of an Environment matters to runs and tests too."""
        for key in tuple(self._users_of(environment)):
            self.changed(key)

    def _users_of(self, metadata: Metadata) -> Iterator[Key]:
        """Runs and tests that wait for an Environment's description; those under way do not use it again."""
        for run in self.runs_in(metadata.namespace):
            if isinstance(run, TrainingRun) and _asks_for(run, metadata.name):
                yield key_of(run)
        for test in self.tests.all():
            is_here = test.metadata.namespace == metadata.namespace and not test.status.is_finished
            if is_here and isinstance(test, InferenceTest) and test.spec.environment_name == metadata.name:
                yield key_of(test)

    def run(self, key: Key) -> AnyRun | None:
        return self.runs.get(key.namespace, key.name)

    def find(self, key: Key) -> AnyOwner | None:
        found: AnyOwner | None = self.cache(key.kind).get(key.namespace, key.name)
        return found

    def owners(self) -> Iterator[AnyOwner]:
        yield from self.environments.all()
        yield from self.tests.all()
        yield from self.runs.all()

    def runs_in(self, namespace: str) -> tuple[AnyRun, ...]:
        return tuple(run for run in self.runs.all() if run.metadata.namespace == namespace)

    def environment_names(self, namespace: str) -> tuple[str, ...]:
        found = (each.metadata for each in self.environments.all())
        return tuple(metadata.name for metadata in found if metadata.namespace == namespace)

    def policies_in(self, namespace: str) -> tuple[AnyPolicy, ...]:
        return tuple(policy for policy in self.policies.all() if policy.metadata.namespace == namespace)

    def pods_of(self, key: Key, uid: str) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods.belonging_to(key) if pod.metadata.labels.get(UID_LABEL) == uid)

    def secret_of(self, key: Key, uid: str) -> SecretChild | None:
        return next((s for s in self.secrets.belonging_to(key) if s.metadata.labels.get(UID_LABEL) == uid), None)

    def workload_of(self, key: Key, uid: str) -> Workload | None:
        return next((w for w in self.workloads.belonging_to(key) if w.metadata.labels.get(UID_LABEL) == uid), None)

    def objects_of(self, key: Key, uid: str) -> dict[ObjectKey, ObjectSeen]:
        found: dict[ObjectKey, ObjectSeen] = {}
        sources: list[tuple[Kind, Iterable[Child | SecretChild]]] = [("Secret", self.secrets.belonging_to(key))]
        sources += [(kind, cache.belonging_to(key)) for kind, cache in self.children.items()]
        for kind, items in sources:
            for item in items:
                if item.metadata.labels.get(UID_LABEL) == uid:
                    found[ObjectKey(kind, item.metadata.name)] = _seen(item)
        return found


def _is_selected(kind: Kind, metadata: Metadata) -> bool:
    """No watch reports the end of an object that lost the label: in a cache it would stay for ever."""
    return kind not in LABELLED_KINDS or metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY


def _asks_for(run: TrainingRun, environment: str) -> bool:
    is_asking = not (run.status.resolved or run.status.is_finished)
    return is_asking and any(each.environment_name == environment for each in run.spec.environments)


def _affected(kind: Kind, metadata: Metadata) -> tuple[Key, ...]:
    """Our own object itself, or the one that a child belongs to."""
    mine = next((Key(metadata.namespace, metadata.name, each) for each in PLURALS if each == kind), None)
    key = mine or owner(metadata)
    return (key,) if key is not None else ()


def _seen(item: Child | SecretChild) -> ObjectSeen:
    metadata = item.metadata
    seen = ObjectSeen(
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        created_at=metadata.creation_timestamp or datetime.now(UTC),
        fingerprint=metadata.annotations.get(FINGERPRINT_ANNOTATION, ""),
        labels=metadata.labels,
        owners=metadata.owner_references,
        spec=item.spec if isinstance(item, Child) else {},
        is_terminating=metadata.is_being_deleted,
    )
    if isinstance(item, Child):
        return seen
    return msgspec.structs.replace(
        seen,
        contents=item.contents,
        has_tokens=item.has_tokens,
        token_revision=metadata.annotations.get(TOKENS_ANNOTATION, ""),
    )


_CHILD: Final[Decoder[Pod | Child | Workload]] = Decoder(Child)
_CHILDREN: Final[Mapping[Kind, Decoder[Pod | Child | Workload]]] = {"Pod": Decoder(Pod), "Workload": Decoder(Workload)}
_PARSERS: Final[Mapping[Kind, Callable[[Mapping[str, Any]], Object]]] = {
    "TrainingRun": parse,
    "Environment": environment.parse,
    "InferenceTest": inference_tests.parse,
    "TrainingPolicy": training_policy.parse,
    "Pod": parse_pod,
    "Secret": parse_secret,
    "Workload": parse_workload,
}


def decode(kind: Kind, body: Mapping[str, Any]) -> Object:
    return _PARSERS[kind](body) if kind in _PARSERS else msgspec.convert(body, Child)
