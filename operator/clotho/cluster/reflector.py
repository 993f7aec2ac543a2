"""Keeps the store's objects of a kind as the cluster has them: listed once, then watched."""

import asyncio
import logging
import sys
import time
from typing import Final

from msgspec import Raw

from clotho.api.metadata import Metadata
from clotho.cluster.client import ApiClient
from clotho.cluster.kinds import WATCHED_CHILDREN
from clotho.cluster.outcomes import ApiError, Gone, NoCredentials, Transient, Unauthorized
from clotho.cluster.store import Store
from clotho.cluster.watch import Event, of_kind
from clotho.plan.model import Kind

log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 1.0


class Reflector:
    """One kind in one namespace, or in all of them. `last_event`: when the watch last delivered something."""

    def __init__(self, client: ApiClient, store: Store, kind: Kind, scope: str | None) -> None:
        self.kind, self._store, self._scope = kind, store, scope
        self._collection = of_kind(client, kind, scope)
        self._version = ""  # from which to watch; empty where everything has to be listed
        self.last_event = time.monotonic()

    @property
    def is_filled(self) -> bool:
        return bool(self._version)

    async def fill(self) -> None:
        """Take in what is listed, and forget what is not."""
        present: list[Metadata] = []
        version = ""
        async for page in self._collection.pages(Raw):
            found = (self._store.handle_json(self.kind, False, bytes(body)) for body in page.items or ())
            present += filter(None, found)
            version = page.metadata.resource_version
        self._store.forget_absent(self.kind, self._scope, present, int(version))
        self._version = version

    async def follow(self) -> None:
        """Until the API server ends the watch, as it does regularly."""
        try:
            async for event in self._collection.events(self._version):
                self.last_event = time.monotonic()
                if event.type != "BOOKMARK" and not self._is_known(event):
                    self._store.handle_json(self.kind, event.is_deleted, event.body)
                self._version = event.version or self._version
        except Gone as error:
            log.info("listing %s again: %s", self._collection.folder, error)
            self._version = ""

    def _is_known(self, event: Event) -> bool:
        """Mostly from our own writes. How a container ended is wanted nevertheless: their answers are not searched."""
        is_known = self._store.cache(self.kind).has(event.namespace, event.name, event.version)
        return is_known and not event.is_deleted and b'"terminated"' not in event.body

    def clear(self) -> None:
        """The kind was removed from the cluster."""
        self._store.forget_absent(self.kind, self._scope, (), sys.maxsize)
        self._version = ""


class Children:
    """What our objects consist of. `filled`: all of it is known. `namespaces` empty means the whole cluster."""

    def __init__(self, client: ApiClient, store: Store, namespaces: tuple[str, ...]) -> None:
        scopes: tuple[str | None, ...] = namespaces or (None,)
        self._reflectors = [Reflector(client, store, kind, scope) for kind in WATCHED_CHILDREN for scope in scopes]
        self.filled = asyncio.Event()

    def idle_seconds(self, kind: Kind) -> float:
        return time.monotonic() - max(each.last_event for each in self._reflectors if each.kind == kind)

    async def run(self) -> None:
        """Until cancelled; raises when a kind can no longer be read."""
        await asyncio.gather(*map(self._keep, self._reflectors))

    async def _keep(self, reflector: Reflector) -> None:
        while True:
            try:
                if not reflector.is_filled:
                    await reflector.fill()
                    self._note_filled()
                await reflector.follow()
            except ApiError as error:
                may_pass = isinstance(error, Transient | Unauthorized | NoCredentials)
                if self.filled.is_set() and not may_pass:
                    raise
                log.warning("cannot watch %s, trying again in %g s: %s", reflector.kind, RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)

    def _note_filled(self) -> None:
        if all(each.is_filled for each in self._reflectors):
            self.filled.set()
