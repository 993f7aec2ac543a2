"""The seam between deciding and doing: what the planners get, and what they return.

`cluster/` fills `Observed` from its caches and probes, calls `plan`, carries out the actions in order, replaces the
status (when there is one to write), posts the events, and calls again at `wake_at` or when something changes.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct, field

from clotho.api.environment import AnyEnvironment
from clotho.api.metadata import OwnerReference
from clotho.api.training_policy import AnyPolicy
from clotho.plan.pods import Pod
from clotho.plan.workloads import KueueSeen
from clotho_contract.exports import ExportProgress
from clotho_contract.progress import Progress

Kind = Literal[
    "Pod",
    "Service",
    "Secret",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "Workload",
    "TrainingPolicy",
    "TrainingRun",
    "Environment",
    "InferenceTest",
]
Manifest = dict[str, Any]
Answer = TypeVar("Answer")
Status = TypeVar("Status")


class ObjectKey(Struct, frozen=True):
    """One object in the run's namespace."""

    kind: Kind
    name: str


class ObjectSeen(Struct, frozen=True, kw_only=True):
    """An object other than a pod."""

    uid: str
    resource_version: str
    created_at: datetime
    fingerprint: str = ""  # the value of FINGERPRINT_ANNOTATION
    labels: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[OwnerReference, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    contents: str = ""  # of a run's Secret: digest of the config file,
    has_tokens: bool = True  # whether every token is there as it was made,
    token_revision: str = ""  # and the value of TOKENS_ANNOTATION
    is_terminating: bool = False


class Refusal(Struct, frozen=True, kw_only=True):
    """The API server's message about a manifest it refused. Permanent: the same manifest cannot succeed."""

    message: str
    is_permanent: bool


class Probe(Struct, Generic[Answer], frozen=True, kw_only=True):
    """The last probe of a pod. `answer` is None when it did not answer; then `problem` is the reason."""

    pod_uid: str  # an answer of an earlier pod does not count
    taken_at: datetime
    answer: Answer | None = None
    problem: str = ""


class QueueStatus(Struct, frozen=True, kw_only=True):
    """The part of the API server's `/status` that the planner reads."""

    current_step: int = 0
    queue_groups: int = 0
    batches_ready: int = 0  # complete batches that wait for the trainer, leased ones included
    is_full: bool = False
    environments_connected: int = 0
    storage_problem: str = ""  # groups are refused because the API server's volume is full
    state_lost: str = ""  # what the API server found when it started and could not use


class Probes(Struct, frozen=True, kw_only=True):
    """Filled by `cluster/`'s probe pool; None = not asked yet."""

    trainer: Probe[Progress] | None = None  # GET trainer:8002/progress
    api_server: Probe[QueueStatus] | None = None  # GET api-server:8000/status, with the operator's token
    exporter: Probe[ExportProgress] | None = None  # GET exporter:8002/progress
    inference: Probe[bool] | None = None  # GET trainer:8001/health: the answer is True


class Reference(Struct, frozen=True):
    """An object that a run names and that others make."""

    kind: Literal["Secret", "ConfigMap", "PersistentVolumeClaim", "StorageClass"]
    name: str
    field: str  # of the spec
    file: str = ""  # one that the ConfigMap must have,
    files: tuple[str, ...] = ()  # and those that it has, where that one is missing


class Observed(Struct, frozen=True, kw_only=True):
    """All that is known of one run besides the TrainingRun itself.

    Only what carries this run's uid in UID_LABEL belongs in here: pods of an earlier run of the same name do not.
    The operator's own writes are in `pods` and `objects` at once; where an answer was lost, `cluster/` finds out what
    became of the write before it asks for the next plan.
    `refused` holds the last answer to a Create or Apply that was refused (422: permanent; 403 such as a quota: not), as
    long as the spec's generation is the same; retries with backoff are up to `cluster/`.
    `environments`: those of the catalogue that the run names; `catalogue`: the names of all in its namespace.
    `is_unchecked`: the API server has not seen the pods of this generation of the spec yet, not even in a dry run.
    `missing`: what the run names and the namespace does not have, as long as the run has no pods.
    `kueue`: of a run that asks for Kueue, or has a Workload left from when it did.
    `policies` are those of the run's namespace; where one of them limits active runs, queueing.py counts `runs_ahead`.
    """

    pods: tuple[Pod, ...] = ()
    objects: Mapping[ObjectKey, ObjectSeen] = field(default_factory=dict)
    probes: Probes = Probes()
    refused: Mapping[ObjectKey, Refusal] = field(default_factory=dict)
    environments: Mapping[str, AnyEnvironment] = field(default_factory=dict)
    catalogue: tuple[str, ...] = ()
    is_unchecked: bool = False
    missing: tuple[Reference, ...] = ()
    policies: tuple[AnyPolicy, ...] = ()
    runs_ahead: int = 0
    kueue: KueueSeen | None = None


class Create(Struct, frozen=True, kw_only=True):
    """POST. An object of that name that is the run's own is adopted: its labels and its owner are put right. One of
    another owner is left alone: that is a refusal, and a transient error.

    `random_keys`: keys of the manifest's `data` that the writer fills with fresh random tokens (Secrets only), so that
    no token ever passes through a plan.
    """

    key: ObjectKey
    manifest: Manifest
    random_keys: tuple[str, ...] = ()


class Validate(Struct, frozen=True, kw_only=True):
    """POST as a dry run that refuses unknown fields: nothing is made."""

    key: ObjectKey
    manifest: Manifest


class Apply(Struct, frozen=True, kw_only=True):
    """Server-side apply with FIELD_MANAGER, forced where the object is the run's own; of another owner as in Create.

    `random_keys` as in Create: those that exist are left alone.
    """

    key: ObjectKey
    manifest: Manifest
    random_keys: tuple[str, ...] = ()
    subresource: Literal["", "status"] = ""


class Delete(Struct, frozen=True, kw_only=True):
    """DELETE with uid and resourceVersion as preconditions; on a conflict, reconcile again. Grace None: the pod's."""

    key: ObjectKey
    uid: str
    resource_version: str
    grace_seconds: int | None = None


Action = Create | Apply | Delete | Validate


def delete_pod(pod: Pod, grace_seconds: int | None = None) -> Delete:
    return Delete(
        key=ObjectKey("Pod", pod.name),
        uid=pod.uid,
        resource_version=pod.metadata.resource_version,
        grace_seconds=grace_seconds,
    )


class Event(Struct, frozen=True, kw_only=True):
    """Posted after the status is written. `cause` is the bounded label that restart and stall counters are kept by."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    cause: str = ""


RESTARTING = "Restarting"  # Event.reason: clotho_restarts_total{reason=cause}
STALLED = "Stalled"  # Event.reason: clotho_stalls_total{cause=cause}


class SetSteps(Struct, frozen=True, kw_only=True):
    """PUT /steps to a running trainer that trains for another number of steps than its run asks for by now."""

    pod_uid: str
    address: str
    steps: int


class Plan(Struct, Generic[Status], frozen=True, kw_only=True):
    """What to do now. Actions are carried out in order; the first that fails ends the pass. They rest on the
    stored status alone, never on the new one: so a crash between any two writes is harmless.

    `status`, when not None, replaces the whole status (not a merge: what is absent must vanish), guarded by the run's
    resourceVersion. After a status write the run is planned again at once.

    `set_steps`: best effort, beside the actions; as long as the trainer reports another number it is planned again.
    """

    actions: tuple[Action, ...] = ()
    status: Status | None = None
    events: tuple[Event, ...] = ()
    set_steps: SetSteps | None = None
    wake_at: datetime | None = None
    can_wait: bool = False  # the wake-up is for a status that is not urgent: new runs may start first
