"""A run's pod as decisions see it, decoded from the API server's JSON as it is."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from clotho.api.metadata import Metadata, OwnerReference
from clotho.api.names import (
    ATTEMPT_LABEL,
    COMPONENT_LABEL,
    ENVIRONMENT_LABEL,
    FINGERPRINT_ANNOTATION,
    GENERATION_ANNOTATION,
    INDEX_LABEL,
    RESTARTS_LABEL,
    TOKENS_ANNOTATION,
    TRAINER,
)
from clotho.plan.shapes import Condition, Shape
from clotho_contract import termination


class Waiting(Shape, frozen=True):
    reason: str = ""
    message: str = ""


class Running(Shape, frozen=True):
    started_at: datetime | None = None


class Terminated(Shape, frozen=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


class ContainerState(Shape, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Shape, frozen=True):
    name: str
    image: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()


class PodStatus(Shape, frozen=True):
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"] = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class ConfigMapSource(Shape, frozen=True):
    name: str = ""


class SecretSource(Shape, frozen=True):
    secret_name: str = ""


class ClaimSource(Shape, frozen=True):
    claim_name: str = ""


class Volume(Shape, frozen=True):
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    persistent_volume_claim: ClaimSource | None = None

    @property
    def title(self) -> str:
        """What has to be there; empty where nothing has."""
        if self.config_map is not None:
            return f"ConfigMap {self.config_map.name}"
        if self.secret is not None:
            return f"Secret {self.secret.secret_name}"
        return f"claim {self.persistent_volume_claim.claim_name}" if self.persistent_volume_claim else ""


class Resources(Shape, frozen=True):
    limits: dict[str, str | int] = field(default_factory=dict)


class ContainerSpec(Shape, frozen=True):
    name: str
    image: str = ""
    resources: Resources = Resources()


class PodSpec(Shape, frozen=True):
    node_name: str = ""
    containers: tuple[ContainerSpec, ...] = ()
    volumes: tuple[Volume, ...] = ()


class Pod(Struct, frozen=True, kw_only=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def component(self) -> str:
        return self.metadata.labels.get(COMPONENT_LABEL, "")

    @property
    def environment(self) -> str:
        return self.metadata.labels.get(ENVIRONMENT_LABEL, "")

    @property
    def index(self) -> int:
        return _number(self.metadata.labels.get(INDEX_LABEL, ""))

    @property
    def is_follower(self) -> bool:
        """A trainer pod other than the first, which alone reports and writes checkpoints."""
        return self.component == TRAINER and self.index > 0

    @property
    def attempt(self) -> int:
        return _number(self.metadata.labels.get(ATTEMPT_LABEL, ""))

    @property
    def restarts_before(self) -> int:
        return _number(self.metadata.labels.get(RESTARTS_LABEL, ""))

    @property
    def fingerprint(self) -> str:
        return self.metadata.annotations.get(FINGERPRINT_ANNOTATION, "")

    @property
    def generation(self) -> int:
        """Of the spec that it was rendered from; 0 where it is not known."""
        return _number(self.metadata.annotations.get(GENERATION_ANNOTATION, ""))

    @property
    def token_revision(self) -> str:
        """Of the Secret whose tokens it has."""
        return self.metadata.annotations.get(TOKENS_ANNOTATION, "")

    @property
    def owners(self) -> tuple[OwnerReference, ...]:
        return self.metadata.owner_references

    @property
    def ended_at(self) -> datetime | None:
        """Of a pod in which nothing ever ran, its last change: it ended no earlier, and the time stands still."""
        finished = [each.state.terminated.finished_at for each in self.containers if each.state.terminated is not None]
        changed = [each.last_transition_time for each in self.status.conditions]
        return _latest(finished) or _latest(changed) or self.metadata.creation_timestamp

    @property
    def image(self) -> str:
        """Of the main container, as it was asked for."""
        return next((each.image for each in self.spec.containers if each.name == "main"), "")

    @property
    def is_terminating(self) -> bool:
        return self.metadata.is_being_deleted

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_gone(self) -> bool:
        """Nothing of it runs or will run; only somebody's finalizer may still keep the object."""
        is_unscheduled = self.status.phase == "Pending" and not self.spec.node_name
        return self.is_terminating and (self.has_ended or is_unscheduled)

    @property
    def is_running(self) -> bool:
        return self.status.phase == "Running" and not self.is_terminating

    @property
    def is_at_work(self) -> bool:
        """Running, or waiting in an init container for those it needs."""
        is_waiting_inside = any(each.state.running is not None for each in self.status.init_container_statuses)
        return self.is_running or (is_waiting_inside and not self.is_terminating)

    @property
    def is_ready(self) -> bool:
        found = self.condition("Ready") if self.is_running else None
        return found is not None and found.status == "True"

    @property
    def containers(self) -> tuple[ContainerStatus, ...]:
        """Init containers first: that is the order in which they fail."""
        return self.status.init_container_statuses + self.status.container_statuses

    @property
    def termination(self) -> termination.Termination | None:
        """The termination message of the main containers, where it follows the contract."""
        for container in self.status.container_statuses:
            ended = container.state.terminated
            if ended is not None and ended.message and (reported := termination.decode(ended.message)):
                return reported
        return None

    def condition(self, kind: str) -> Condition | None:
        for found in self.status.conditions:
            if found.type == kind:
                return found
        return None


def parse_pod(body: Mapping[str, Any]) -> Pod:
    return msgspec.convert(body, Pod)


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    return max((time for time in times if time is not None), default=None)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
