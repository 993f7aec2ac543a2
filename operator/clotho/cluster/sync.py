"""Makes the caches complete before the first decision, and compares them with the cluster now and then.

Kopf's watches report what happens while they are open; a deletion during a long break is never reported.
"""

import asyncio
import logging
from typing import Final

from msgspec import Struct

from clotho.api.metadata import Metadata
from clotho.cluster.apply import Writer
from clotho.cluster.client import ApiClient, Object
from clotho.cluster.kinds import RESOURCES, WATCHED_CHILDREN, WATCHED_KINDS, Resource
from clotho.cluster.outcomes import ApiError, NotFound
from clotho.cluster.store import Child, Store
from clotho.cluster.watch import Page, of_kind
from clotho.plan.model import Kind, ObjectKey

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 5.0
KINDS: Final[tuple[Kind, ...]] = (*WATCHED_CHILDREN, *WATCHED_KINDS)


class _Named(Struct, frozen=True):
    name: str


class _Announced(Struct, frozen=True):
    """The API server's own list of what a group has; it lags a little behind a CRD that was just installed."""

    resources: tuple[_Named, ...] = ()


class Synchroniser:
    """`namespaces` empty means the whole cluster."""

    def __init__(self, client: ApiClient, store: Store, writer: Writer, namespaces: tuple[str, ...]) -> None:
        self._client, self._store, self._writer = client, store, writer
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self.is_synced = False

    async def wait_until_served(self) -> None:
        """The API server may not be up yet, or a CRD not installed."""
        for kind in WATCHED_KINDS:
            await self._wait_for(RESOURCES[kind])

    async def _wait_for(self, resource: Resource) -> None:
        while True:
            try:
                await self._client.list(resource.folder(self._scopes[0]), Page[Child], {"limit": "1"})
                announced = await self._client.get(resource.root, _Announced)
                if any(each.name == resource.plural for each in announced.resources):
                    return
                log.info("%s is served but not announced yet", resource.plural)  # Kopf watches what is announced
            except NotFound as error:
                log.error("is the CRD %s installed? (kubectl apply -f crds/): %s", resource.plural, error)
            except ApiError as error:
                log.error("cannot list, trying again in %g s: %s", RETRY_SECONDS, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def prime(self) -> None:
        """List our own kinds. Only with watches already open is nothing lost between the list and the watch."""
        while not self.is_synced:
            try:
                await asyncio.gather(*(self._fill(kind, scope) for kind in WATCHED_KINDS for scope in self._scopes))
                self.is_synced = True
            except ApiError as error:
                log.error("cannot list, trying again in %g s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _fill(self, kind: Kind, scope: str | None) -> None:
        async for page in of_kind(self._client, kind, scope).pages(Object):
            for body in page.items or ():
                self._store.take_in(kind, body)

    async def compare(self) -> None:
        """Forget what is gone, fetch what is newer than the cache."""
        for kind in KINDS:
            for scope in self._scopes:
                listed, version = await self._listed(kind, scope)
                for name in self._store.forget_absent(kind, scope, (item.metadata for item in listed), version):
                    log.info("the watch missed the deletion of %s %s", kind, name)
                for item in listed:
                    await self._catch_up(kind, item.metadata)

    async def _catch_up(self, kind: Kind, listed: Metadata) -> None:
        known = self._store.cache(kind).get(listed.namespace, listed.name)
        if known is None or int(known.metadata.resource_version) < int(listed.resource_version):
            body = await self._writer.refresh(listed.namespace, ObjectKey(kind, listed.name))
            if body is not None:
                self._store.announce(kind, listed)

    async def _listed(self, kind: Kind, scope: str | None) -> tuple[list[Child], int]:
        items: list[Child] = []
        version = 0
        async for page in of_kind(self._client, kind, scope).pages(Child, only_metadata=True):
            items += page.items or ()
            version = int(page.metadata.resource_version or 0)
        return items, version
