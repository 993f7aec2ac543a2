"""Kopf watches our own kinds: its handlers only hand over to the caches. None of its state is ever written."""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Any

import aiohttp
import kopf

from clotho.cluster.credentials import Credentials
from clotho.cluster.kinds import RESOURCES, WATCHED_KINDS
from clotho.cluster.store import Store
from clotho.manager.responses import BoundedResponse
from clotho.plan.model import Kind


class _NoMemory(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """We use no handlers that compare or resume, so there is nothing to extract, keep or copy for an event."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


class Watching:
    """`open`: every watch is established, so that nothing which happens from now on is missed.

    `relisted`: a watch had to start anew; no watch reports deletions during the break.
    `last_event[kind]`: the time of the newest event.
    """

    def __init__(self, store: Store, credentials: Credentials, namespaces: tuple[str, ...]) -> None:
        self._store, self._credentials, self._namespaces = store, credentials, namespaces
        self.last_event: dict[Kind, float] = dict.fromkeys(WATCHED_KINDS, time.monotonic())
        self.open = asyncio.Event()
        self.relisted = asyncio.Event()
        scopes = namespaces or (None,)
        self._awaited = {RESOURCES[kind].folder(scope) for kind in self.last_event for scope in scopes}
        self._watched = frozenset(self._awaited)
        self._tasks: Collection[asyncio.Task[Any]] = ()

    async def start(self) -> None:
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else: a line for every event
        self._tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=self._settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
        )

    async def run(self) -> None:
        """Until cancelled; raises when a watch, or any other task of Kopf's, has ended.

        Not `kopf.run_tasks`: when a watch has ended, that waits for every task of the process, and cancels them.
        """
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self._tasks:
                task.cancel()
        for task in done:
            task.result()
        raise RuntimeError("Kopf has stopped")

    def idle_seconds(self, kind: Kind) -> float:
        return time.monotonic() - self.last_event[kind]

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._log_in)
        for kind in WATCHED_KINDS:
            resource = RESOURCES[kind]
            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)(self._handler(kind))
        return registry

    def _handler(self, kind: Kind) -> Any:
        async def handle(event: Any, **_: Any) -> None:
            self.last_event[kind] = time.monotonic()
            self._store.handle_event(kind, event["type"] == "DELETED", event["object"])

        handle.__name__ = f"{kind.lower()}_changed"
        return handle

    async def _log_in(self, **_: Any) -> kopf.AiohttpSession:
        """Called at the start, and again whenever the server no longer takes the token."""
        self._credentials.forget_token()
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._answered)
        session = aiohttp.ClientSession(
            proxy=self._credentials.proxy,
            connector=aiohttp.TCPConnector(limit=0, ssl=self._credentials.tls or False),
            headers=self._credentials.headers(),
            trace_configs=[trace],
            response_class=BoundedResponse,
        )
        return kopf.AiohttpSession(server=self._credentials.server, aiohttp_session=session)

    async def _answered(self, _: object, __: object, answer: aiohttp.TraceRequestEndParams) -> None:
        """Kopf lists and then watches each kind; its requests are the only sign of it."""
        path, is_watch = answer.url.path, "watch" in answer.url.query
        if answer.response.status != 200 or path not in self._watched:
            return
        if is_watch:
            self._awaited.discard(path)
            if not self._awaited:
                self.open.set()
        elif path not in self._awaited:
            self.relisted.set()

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.persistence.diffbase_storage = settings.persistence.progress_storage = _NoMemory()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.networking.request_timeout = 60
        settings.networking.connect_timeout = 10
        settings.watching.connect_timeout = 10
        settings.watching.chunk_size = 500
        settings.queueing.idle_timeout = 1
        return settings
