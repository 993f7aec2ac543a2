"""Where each kind that the operator reads or writes lives in the API."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from clotho.api import names
from clotho.plan.model import Kind, ObjectKey


class Resource(Struct, frozen=True, kw_only=True):
    kind: Kind
    group: str
    version: str
    plural: str

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def folder(self, namespace: str | None) -> str:
        """The collection in a namespace, or in all of them."""
        return f"{self.root}/namespaces/{namespace}/{self.plural}" if namespace else f"{self.root}/{self.plural}"

    def path(self, namespace: str, name: str) -> str:
        return f"{self.folder(namespace)}/{name}"


RESOURCES: Final[Mapping[Kind, Resource]] = {
    resource.kind: resource
    for resource in (
        Resource(kind="TrainingRun", group=names.GROUP, version=names.VERSION, plural=names.PLURAL),
        Resource(kind="Environment", group=names.GROUP, version=names.VERSION, plural=names.PLURALS["Environment"]),
        Resource(kind="InferenceTest", group=names.GROUP, version=names.VERSION, plural=names.PLURALS["InferenceTest"]),
        Resource(kind="TrainingPolicy", group=names.GROUP, version=names.VERSION, plural=names.POLICY_PLURAL),
        Resource(kind="Pod", group="", version="v1", plural="pods"),
        Resource(kind="Service", group="", version="v1", plural="services"),
        Resource(kind="Secret", group="", version="v1", plural="secrets"),
        Resource(kind="PersistentVolumeClaim", group="", version="v1", plural="persistentvolumeclaims"),
        Resource(kind="NetworkPolicy", group="networking.k8s.io", version="v1", plural="networkpolicies"),
        Resource(kind="PodDisruptionBudget", group="policy", version="v1", plural="poddisruptionbudgets"),
        Resource(kind="Workload", group=names.KUEUE_GROUP, version=names.KUEUE_VERSION, plural="workloads"),
    )
}
# Of our own group, all of them; listed in this order, so that a run is never seen without what it depends on.
WATCHED_KINDS: Final[tuple[Kind, ...]] = ("TrainingPolicy", "Environment", "InferenceTest", "TrainingRun")
# Secrets are missing on purpose: the operator may get those that it made, but lists none.
WATCHED_CHILDREN: Final[tuple[Kind, ...]] = (
    "Pod",
    "Service",
    "PersistentVolumeClaim",
    "NetworkPolicy",
    "PodDisruptionBudget",
)
LABELLED_KINDS: Final[tuple[Kind, ...]] = (*WATCHED_CHILDREN, "Workload")  # watched by our label: others have them, too


def path_of(namespace: str, key: ObjectKey) -> str:
    return RESOURCES[key.kind].path(namespace, key.name)
