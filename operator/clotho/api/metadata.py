"""The part of every Kubernetes object's metadata that decisions need."""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field


class OwnerReference(Struct, frozen=True, kw_only=True, rename="camel"):
    """Garbage collection follows only one whose every field is right."""

    api_version: str = ""
    uid: str = ""
    kind: str = ""
    name: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class Metadata(Struct, frozen=True, kw_only=True, rename="camel"):
    """Decoded from the API server's JSON as it is; unused fields are skipped."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def is_being_deleted(self) -> bool:
        return self.deletion_timestamp is not None
