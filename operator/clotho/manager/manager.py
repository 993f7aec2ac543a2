"""The operator as a whole: who feeds whom, in which order things start, and in which order they stop."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aiohttp import web

from clotho.api.metadata import Metadata
from clotho.api.names import KIND
from clotho.cluster.apply import Writer
from clotho.cluster.cache import Key
from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials
from clotho.cluster.descriptions import Descriptions
from clotho.cluster.events import EventPoster
from clotho.cluster.lease import LeaderElection
from clotho.cluster.observe import Observer
from clotho.cluster.outcomes import ApiError
from clotho.cluster.places import Places
from clotho.cluster.probe import Prober
from clotho.cluster.store import Store, key_of, run_key
from clotho.cluster.sync import Synchroniser
from clotho.manager.agenda import Agenda, Backoff, Urgency
from clotho.manager.dispatch import Dispatcher
from clotho.manager.metrics import Metrics, RunCollector
from clotho.manager.reconcile import Reconciler
from clotho.manager.settings import Settings, lease_times, plan_settings, probe_times
from clotho.manager.watching import Watching
from clotho_contract.progress import Progress
from clotho_contract.serving import add_health_routes

log = logging.getLogger(__name__)
HUNG_SECONDS = 300.0  # a pass takes milliseconds; even one whose every request times out is over long before
DRAIN_SECONDS = 10.0
RELIST_PAUSE_SECONDS = 2.0


class Manager:
    def __init__(self, settings: Settings, credentials: Credentials, client: ApiClient, metrics: Metrics) -> None:
        self._settings, self._client, self.metrics = settings, client, metrics
        identity = settings.lease.identity or socket.gethostname()
        self.store = Store()
        self.watching = Watching(self.store, credentials, settings.watch.namespaces)
        self.election = LeaderElection(
            client,
            namespace=settings.lease.namespace or credentials.namespace,
            name=settings.lease.name,
            identity=identity,
            times=lease_times(settings),
        )
        self.writer = Writer(client, self.store, self.is_leader)
        self.sync = Synchroniser(client, self.store, self.writer, settings.watch.namespaces)
        self.prober = Prober(
            self.store, probe_times(settings), lambda target: metrics.probe_failures.labels(target).inc()
        )
        self.store.pod_ended = self.prober.hear
        self.descriptions = Descriptions(
            self.store, settings.probe.timeout_seconds, lambda target: metrics.probe_failures.labels(target).inc()
        )
        self.observer = Observer(client, self.store, self.writer, self.prober, self.descriptions, Places(self.store))
        self.poster = EventPoster(client, identity)
        backoff = Backoff(settings.reconcile.retry_seconds, settings.reconcile.retry_limit_seconds)
        agenda: Agenda[Key] = Agenda(backoff)
        self.reconciler = Reconciler(
            store=self.store,
            observer=self.observer,
            writer=self.writer,
            poster=self.poster,
            agenda=agenda,
            metrics=metrics,
            settings=plan_settings(settings),
            look_at_pods=self._ask_newcomers,
        )
        self.passes = Dispatcher(agenda, self.reconciler.work, settings.reconcile.workers)
        self.probes: Dispatcher[Key] = Dispatcher(Agenda(backoff), self._probe, settings.probe.concurrency)
        self.store.changed = self._changed
        self._export()

    def is_leader(self) -> bool:
        return not self._settings.lease.enabled or self.election.is_leader()

    def healthy(self) -> str | None:
        hung = max(self.passes.longest_pass(), self.probes.longest_pass())
        return f"a pass has been under way for {hung:.0f} s" if hung > HUNG_SECONDS else None

    def ready(self) -> str | None:
        return None if self.sync.is_synced else "the caches are not filled yet"

    async def run(self) -> None:
        """Until SIGTERM or SIGINT, or until a part fails; then the failure is raised."""
        stop = asyncio.Event()
        _on_signal(stop.set)
        server = await self._serve()
        try:
            await _first_of(stop.wait(), self.sync.wait_until_served())
            if not stop.is_set():
                await self.watching.start()
                _on_signal(stop.set)  # Kopf has just installed its own; what writes must end before what watches
                await self._work_until(stop)
        finally:
            await server.cleanup()

    async def _work_until(self, stop: asyncio.Event) -> None:
        lead = asyncio.create_task(self._lead())
        parts = (self.passes.run(), self.probes.run(), self._resync(), self._mind_relists())
        own = [asyncio.create_task(part) for part in parts]
        watch = asyncio.create_task(self.watching.run())
        asked = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([asked, lead, watch, *own], return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping" if asked in done else "a part has ended, stopping")
        await asyncio.gather(*(each.drain(DRAIN_SECONDS) for each in (self.passes, self.probes, self.poster)))
        await _end(lead)  # gives the lease back, now that nothing writes
        await _end(asked, *own)
        self.watching.stop()
        await _end(watch, cancel=False)
        for task in (watch, lead, *own):
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure

    async def _lead(self) -> None:
        await self.watching.open.wait()
        await self.sync.prime()
        log.info("caches filled: %d runs, %d pods", len(self.store.runs), len(self.store.pods))
        if self._settings.lease.enabled:
            await self.election.run(self._leadership_changed)
        else:
            self._leadership_changed(True)
            await asyncio.Event().wait()

    def _leadership_changed(self, leading: bool) -> None:
        log.info("leading" if leading else "not leading")
        self.metrics.leader.set(leading)
        self.passes.allow(leading)
        self.probes.allow(leading)
        if leading:
            self._look_at_all(Urgency.CHANGED)
        else:
            self.prober.forget_all()  # should this replica lead again, old answers would look like a standstill

    def _look_at_all(self, urgency: Urgency) -> None:
        for owner in tuple(self.store.owners()):
            self.passes.add(key_of(owner), urgency)

    def _changed(self, key: Key) -> None:
        owner = self.store.find(key)
        if owner is None:
            self.observer.forget(key)
            if key.kind == KIND:
                self.observer.places.call_next(key.namespace)
        is_new = owner is not None and owner.status.observed_generation < 0
        self.passes.add(key, Urgency.NEW if is_new else Urgency.CHANGED)

    def _ask_newcomers(self, key: Key) -> None:
        has_something = self.prober.has_newcomer if key.kind == KIND else self.descriptions.is_awaited
        if has_something(key):
            self.probes.add(key)

    async def _probe(self, key: Key) -> None:
        if key.kind == KIND:
            is_news, pause = await self.prober.ask(key, datetime.now(UTC))
        else:
            is_news, pause = await self.descriptions.ask(key)
        self.probes.agenda.done(key, None if pause is None else time.monotonic() + pause)
        if is_news:
            self.passes.add(key)

    async def _resync(self) -> None:
        """Look at everything again, whatever the watches say."""
        while True:
            await asyncio.sleep(self._settings.reconcile.resync_seconds)
            await self._compare()
            self.observer.recheck()
            self._look_at_all(Urgency.REFRESH)

    async def _mind_relists(self) -> None:
        """A watch that had to start anew may have missed deletions."""
        while True:
            await self.watching.relisted.wait()
            await asyncio.sleep(RELIST_PAUSE_SECONDS)  # one comparison for all the kinds that were listed
            self.watching.relisted.clear()
            await self._compare()

    async def _compare(self) -> None:
        try:
            await self.sync.compare()
        except ApiError as error:
            log.warning("cannot compare the caches with the cluster: %s", error)

    async def _serve(self) -> web.AppRunner:
        app = web.Application()
        add_health_routes(app, healthy=self.healthy, ready=self.ready, registry=self.metrics.registry)
        server = web.AppRunner(app, access_log=None, handle_signals=False)
        await server.setup()
        await web.TCPSite(server, self._settings.server.host, self._settings.server.port).start()
        log.info("serving health and metrics on %s", server.addresses)
        return server

    def _export(self) -> None:
        metrics, agenda = self.metrics, self.passes.agenda
        metrics.queue_depth.set_function(lambda: agenda.depth)
        metrics.queue_age.set_function(lambda: agenda.oldest_age(time.monotonic()))
        for kind in self.watching.last_event:
            metrics.watch_idle.labels(kind).set_function(partial(self.watching.idle_seconds, kind))
        metrics.registry.register(RunCollector(self.store.runs.all, self._last_answer, self.is_leader))

    def _last_answer(self, metadata: Metadata) -> Progress | None:
        probe = self.prober.answers(run_key(metadata)).trainer
        return probe.answer if probe else None


def _on_signal(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _first_of(*parts: Coroutine[object, object, object]) -> None:
    """Run until one is done; the others are cancelled, and a failure is raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(*tasks)
    for task in done:
        task.result()


async def _end(*tasks: "asyncio.Task[Any]", cancel: bool = True) -> None:
    for task in tasks:
        if cancel:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
