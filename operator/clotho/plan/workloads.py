"""Kueue's Workload as decisions see it, decoded from the API server's JSON as it is."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from clotho.api.metadata import Metadata
from clotho.api.names import FINGERPRINT_ANNOTATION
from clotho.plan.shapes import Condition, Shape

ConditionType = Literal["QuotaReserved", "Admitted", "Evicted", "Finished", "PodsReady"]


class PodSetAssignment(Shape, frozen=True):
    name: str
    flavors: Mapping[str, str] = field(default_factory=dict)  # by resource


class Admission(Shape, frozen=True):
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class PodSetUpdate(Shape, frozen=True):
    """What an admission check adds to the pods, such as the name of a ProvisioningRequest."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class AdmissionCheck(Shape, frozen=True):
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class WorkloadSpec(Shape, frozen=True):
    active: bool = True


class WorkloadStatus(Shape, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[AdmissionCheck, ...] = ()


class Workload(Shape, frozen=True):
    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def condition(self, kind: ConditionType) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == kind), None)

    def has(self, kind: ConditionType) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def holds_quota(self) -> bool:
        return self.has("QuotaReserved") and not self.has("Finished")

    @property
    def is_admitted(self) -> bool:
        """Its pods may run. An evicted Workload stays Admitted until its quota is given back."""
        return self.holds_quota and self.has("Admitted") and not self.has("Evicted")

    @property
    def fingerprint(self) -> str:
        return self.metadata.annotations.get(FINGERPRINT_ANNOTATION, "")


def parse_workload(body: Mapping[str, Any]) -> Workload:
    return msgspec.convert(body, Workload)


class Flavour(Shape, frozen=True):
    """The spec of a ResourceFlavor."""

    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class KueueSeen(Struct, frozen=True, kw_only=True):
    """What is known of Kueue for one run."""

    absence: Literal["", "NotInstalled", "Forbidden"] = ""  # why the operator cannot use it
    workload: Workload | None = None
    priority: int | None = None  # of the WorkloadPriorityClass that the run names; None: it does not exist
    flavours: Mapping[str, Flavour] = field(default_factory=dict)  # of an admitted Workload, by name
