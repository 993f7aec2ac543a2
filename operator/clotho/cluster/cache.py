"""The last known state of the cluster: fed by watches and by our own writes, whichever is newer, never going back."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from clotho.api.metadata import Metadata
from clotho.api.names import KIND, OwnerKind

TOMBSTONES = 4096


class Key(NamedTuple):
    """What is reconciled: an object of ours."""

    namespace: str
    name: str
    kind: OwnerKind = KIND

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=HasMetadata)
_Identity = tuple[str, str]


def version(metadata: Metadata) -> int:
    """Resource versions of one kind are comparable integers."""
    return int(metadata.resource_version) if metadata.resource_version.isdigit() else 0


def _is_newer(metadata: Metadata, known: Metadata) -> bool:
    """The answer to a deletion without a grace period carries the old version."""
    if version(metadata) == version(known):
        return metadata.is_being_deleted and not known.is_being_deleted
    return version(metadata) > version(known)


class Cache(Generic[T]):
    """Objects of one kind by owner. Answers to our own writes go in as well, so that the next reconcile sees them at
    once: a watch that lags behind cannot make us create or delete anything twice."""

    def __init__(self, owner: Callable[[Metadata], Key | None]) -> None:
        self._owner = owner
        self._objects: dict[_Identity, T] = {}
        self._by_owner: dict[Key, dict[_Identity, T]] = {}
        self._gone: OrderedDict[str, float] = OrderedDict()  # by uid, the version before which states are outdated

    def observe(self, item: T) -> bool:
        """Take in a state of an object; False when it is nothing new."""
        metadata = item.metadata
        identity = (metadata.namespace, metadata.name)
        known = self._objects.get(identity)
        if self._is_outdated(metadata):
            return False
        if known is not None and not _is_newer(metadata, known.metadata):
            return False
        self._gone.pop(metadata.uid, None)
        run = self._owner(metadata)
        if known is not None and self._owner(known.metadata) != run:
            self._unlink(identity, known)
        self._objects[identity] = item
        if run is not None:
            self._by_owner.setdefault(run, {})[identity] = item
        return True

    def _is_outdated(self, metadata: Metadata) -> bool:
        """The answer to a deletion carries the version of the removal that a watch may have reported before it."""
        gone_at = self._gone.get(metadata.uid, 0)
        return version(metadata) < gone_at or (metadata.is_being_deleted and version(metadata) == gone_at)

    def remove(self, metadata: Metadata, at_version: float = math.inf) -> bool:
        """The object is gone; a successor of the same name stays.

        `at_version`: no watch or list has it from that version on. It may have lost a label only, and exist: what is
        read at that version or later counts.
        """
        self._gone[metadata.uid] = at_version
        while len(self._gone) > TOMBSTONES:
            self._gone.popitem(last=False)
        identity = (metadata.namespace, metadata.name)
        known = self._objects.get(identity)
        if known is None or known.metadata.uid != metadata.uid:
            return False
        del self._objects[identity]
        self._unlink(identity, known)
        return True

    def _unlink(self, identity: _Identity, known: T) -> None:
        run = self._owner(known.metadata)
        if run is not None and run in self._by_owner:
            self._by_owner[run].pop(identity, None)
            if not self._by_owner[run]:
                del self._by_owner[run]

    def absent_from(self, listed: Iterable[Metadata], list_version: int) -> list[T]:
        """What the cluster no longer has, by a list taken at that version; a watch may have missed the deletions."""
        present = {metadata.uid for metadata in listed}
        return [
            item
            for item in self._objects.values()
            if item.metadata.uid not in present and version(item.metadata) <= list_version
        ]

    def has(self, namespace: str, name: str, resource_version: str) -> bool:
        """Whether this very state is known already: cheaper than decoding the object again."""
        known = self._objects.get((namespace, name))
        return known is not None and known.metadata.resource_version == resource_version

    def get(self, namespace: str, name: str) -> T | None:
        return self._objects.get((namespace, name))

    def belonging_to(self, owner: Key) -> Iterable[T]:
        return self._by_owner.get(owner, {}).values()

    def all(self) -> Iterable[T]:
        return self._objects.values()

    def __len__(self) -> int:
        return len(self._objects)
