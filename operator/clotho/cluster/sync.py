"""Makes the caches complete before the first decision, and compares them with the cluster now and then.

Watches report what happens while they are open; a deletion during a long break is never reported.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct, field

from clotho.api.metadata import Metadata
from clotho.api.names import SELECTOR
from clotho.cluster.apply import Writer
from clotho.cluster.client import ApiClient
from clotho.cluster.kinds import RESOURCES, WATCHED_CHILDREN, WATCHED_KINDS, Resource
from clotho.cluster.outcomes import ApiError, NotFound
from clotho.cluster.store import Child, Store
from clotho.plan.model import Kind, ObjectKey

log = logging.getLogger(__name__)
PAGE: Final = "500"
RETRY_SECONDS: Final = 5.0
KINDS: Final[tuple[Kind, ...]] = (*WATCHED_CHILDREN, *WATCHED_KINDS)


class _ListMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = field(name="continue", default="")


T = TypeVar("T")


class _Page(Struct, Generic[T], frozen=True):
    metadata: _ListMetadata
    items: tuple[T, ...] | None = None  # Go encodes an empty list so


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
                await self._client.list(resource.folder(self._scopes[0]), _Page[Child], {"limit": "1"})
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
        """List everything. Only with watches already open is nothing lost between the list and the watch."""
        while not self.is_synced:
            try:
                await asyncio.gather(*(self._fill(kind, scope) for kind in KINDS for scope in self._scopes))
                self.is_synced = True
            except ApiError as error:
                log.error("cannot list, trying again in %g s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _fill(self, kind: Kind, scope: str | None) -> None:
        async for page in self._pages(kind, scope, _Page[dict[str, Any]]):
            for body in page.items or ():
                self._store.take_in(kind, body)

    async def compare(self) -> None:
        """Forget what is gone, fetch what is newer than the cache."""
        for kind in KINDS:
            cache = self._store.cache(kind)
            for scope in self._scopes:
                listed, version = await self._listed(kind, scope)
                for item in cache.absent_from((i.metadata for i in listed), version):
                    if scope in (None, item.metadata.namespace):
                        log.info("the watch missed the deletion of %s %s", kind, item.metadata.name)
                        self._store.forget(kind, item.metadata)
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
        async for page in self._pages(kind, scope, _Page[Child], only_metadata=True):
            items += page.items or ()
            version = int(page.metadata.resource_version or 0)
        return items, version

    async def _pages(
        self, kind: Kind, scope: str | None, page_type: type[_Page[T]], *, only_metadata: bool = False
    ) -> AsyncIterator[_Page[T]]:
        params = {"limit": PAGE} if kind in WATCHED_KINDS else {"limit": PAGE, "labelSelector": SELECTOR}
        while True:
            page = await self._client.list(
                RESOURCES[kind].folder(scope), page_type, params, only_metadata=only_metadata
            )
            yield page
            if not page.metadata.next_page:
                return
            params["continue"] = page.metadata.next_page
