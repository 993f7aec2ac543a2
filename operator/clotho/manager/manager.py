"""The operator as a whole: how its components are connected, and the order in which they start and stop."""

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
from clotho.api.phases import STARTED_PHASES
from clotho.api.training_run import TrainingRun
from clotho.cluster.admissions import Admissions
from clotho.cluster.apply import Writer
from clotho.cluster.cache import Key
from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials
from clotho.cluster.descriptions import Descriptions
from clotho.cluster.events import EventPoster
from clotho.cluster.keeping import Keeper
from clotho.cluster.kinds import WATCHED_CHILDREN, WATCHED_KINDS
from clotho.cluster.kueue import Kueue
from clotho.cluster.lease import LeaderElection
from clotho.cluster.notifications import Notifier
from clotho.cluster.observe import Observer
from clotho.cluster.outcomes import ApiError
from clotho.cluster.probe import Answers, Prober, operator_token
from clotho.cluster.reflector import Children
from clotho.cluster.steering import Steering
from clotho.cluster.store import AnyOwner, Store, key_of, run_key
from clotho.cluster.sync import Synchroniser
from clotho.manager.dispatch import Dispatcher, Result
from clotho.manager.metrics import Metrics, RunCollector
from clotho.manager.queue import Backoff, Queue, Urgency
from clotho.manager.reconcile import Reconciler
from clotho.manager.settings import Settings, lease_times, plan_settings, probe_times
from clotho.manager.watching import Watching
from clotho.plan.run.leaving import first_trainer
from clotho_contract.progress import Progress
from clotho_contract.serving import add_health_routes

log = logging.getLogger(__name__)
HUNG_SECONDS = 300.0  # a reconcile takes milliseconds; even one whose every request times out is over long before
DRAIN_SECONDS = 10.0
RELIST_PAUSE_SECONDS = 2.0
PROBE_SLACK = 1 / 30  # of the interval: probes that start together share the wake-ups of the process
SECRET_SECONDS = 10.0  # each run's Secret is read this often,
SECRET_PAUSE_SECONDS = 1.0  # unless more than 10 runs are active: idle runs must stay cheap


class Manager:
    """`at_stop` is called when the shutdown begins."""

    def __init__(
        self,
        settings: Settings,
        credentials: Credentials,
        client: ApiClient,
        metrics: Metrics,
        at_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._client, self.metrics, self._at_stop = settings, client, metrics, at_stop
        identity = settings.lease.identity or socket.gethostname()
        self.answers = Answers()
        self.store = Store(
            changed=self._changed,
            pod_ended=self.answers.keep_termination,
            on_undecodable=lambda kind: metrics.undecodable.labels(kind).inc(),
        )
        self.watching = Watching(self.store, credentials, settings.watch.namespaces)
        self.children = Children(client, self.store, settings.watch.namespaces)
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
            self.store, self.answers, probe_times(settings), lambda target: metrics.probe_failures.labels(target).inc()
        )
        self.descriptions = Descriptions(
            self.store, settings.probe.timeout_seconds, lambda target: metrics.probe_failures.labels(target).inc()
        )
        self.kueue = Kueue(client, self.store, settings.watch.namespaces)
        self.observer = Observer(
            client, self.store, self.writer, self.answers, self.descriptions, Admissions(self.store), self.kueue
        )
        self.poster = EventPoster(client, identity)
        self.notifier = Notifier(
            settings.notifications.url_file, lambda outcome: metrics.notifications.labels(outcome).inc()
        )
        backoff = Backoff(settings.reconcile.retry_seconds, settings.reconcile.retry_limit_seconds)
        self.probes: Dispatcher[Key] = Dispatcher(
            Queue(backoff),
            self._probe,
            settings.probe.concurrency,
            slack=settings.probe.interval_seconds * PROBE_SLACK,
        )
        self.steering = Steering(partial(operator_token, self.store), settings.probe.timeout_seconds, self.probes.add)
        self.keeper = Keeper(
            client,
            partial(operator_token, self.store),
            self.poster.post,
            self.is_leader,
            settings.probe.timeout_seconds,
        )
        self.reconciler = Reconciler(
            store=self.store,
            observer=self.observer,
            writer=self.writer,
            announcers=(self.poster.post, self.notifier.announce),
            steering=self.steering,
            keeper=self.keeper,
            metrics=metrics,
            settings=plan_settings(settings),
        )
        self.reconciles: Dispatcher[Key] = Dispatcher(
            Queue(backoff), self._reconcile, settings.reconcile.workers, self.reconciler.report
        )
        self._background: dict[str, asyncio.Task[None]] = {}
        self._export()

    def is_leader(self) -> bool:
        return not self._settings.lease.enabled or self.election.is_leader()

    def healthy(self) -> str | None:
        hung = max(self.reconciles.longest_running(), self.probes.longest_running())
        return self._exited() or (f"a reconcile has been under way for {hung:.0f} s" if hung > HUNG_SECONDS else None)

    def ready(self) -> str | None:
        return self._exited() or (None if self.sync.is_synced else "the caches are not filled yet")

    def _exited(self) -> str | None:
        """The first background task that has ended; none of them may while the process lives."""
        name = next((name for name, task in self._background.items() if task.done()), None)
        return f"background task exited: {name}" if name else None

    async def run(self) -> None:
        """Until SIGTERM or SIGINT, or until a background task exits; then its failure is raised."""
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
        tasks = self._start_background()
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        exited = self._exited()
        log.log(logging.ERROR if exited else logging.INFO, "stopping%s", f": {exited}" if exited else "")
        self._at_stop()
        draining = (self.reconciles, self.probes, self.poster, self.notifier, self.steering)
        await asyncio.gather(*(each.drain(DRAIN_SECONDS) for each in draining))
        finished = [task for task in tasks if task.done()]
        await _end(self._background["leader election"])  # releases the lease, now that nothing writes
        await _end(stopped, *tasks)
        for task in finished:
            if not task.cancelled():
                task.result()
        if exited:
            raise RuntimeError(exited)

    def _start_background(self) -> "list[asyncio.Task[None]]":
        self._background = {
            name: asyncio.create_task(work)
            for name, work in {
                "leader election": self._lead(),
                "watches": self.watching.run(),
                "watches of children": self.children.run(),
                "Kueue watch": self.kueue.run(),
                "reconcile queue": self.reconciles.run(),
                "probe queue": self.probes.run(),
                "resync": self._resync(),
                "secret check": self._check_secrets(),
                "relist check": self._compare_after_relists(),
            }.items()
        }
        return [*self._background.values()]

    async def _lead(self) -> None:
        await self.children.filled.wait()
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
        self.store.removed_runs.clear()  # of another leader's time: what became of their claims since is unknown
        self.reconciles.allow(leading)
        self.probes.allow(leading)
        if leading:
            self._enqueue_all(Urgency.CHANGED)
        else:
            self.answers.forget_all()  # should this replica lead again, old answers would look like a stall

    def _enqueue_all(self, urgency: Urgency) -> None:
        for owner in tuple(self.store.owners()):
            self.reconciles.add(key_of(owner), urgency)

    def _changed(self, key: Key) -> None:
        owner = self.store.find(key)
        if owner is None:
            self.observer.forget(key)
            if key.kind == KIND:
                self.observer.admissions.reconcile_queued(key.namespace)
        self.reconciles.add(key, self._urgency(key, owner))

    def _urgency(self, key: Key, owner: AnyOwner | None) -> Urgency:
        """Under a burst it matters more that runs start than that their first status says so before they are ready."""
        if owner is None or owner.status.observed_generation >= 0:
            return Urgency.CHANGED
        pods = self.store.pods_of(key, owner.metadata.uid)
        has_news = bool(pods) and (all(pod.is_ready for pod in pods) or any(pod.has_ended for pod in pods))
        return Urgency.CHANGED if has_news else Urgency.NEW

    async def _reconcile(self, key: Key) -> Result:
        result = await self.reconciler.reconcile(key)
        has_unprobed = self.prober.has_unprobed_pod if key.kind == KIND else self.descriptions.has_unprobed_pod
        if has_unprobed(key):
            self.probes.add(key)
        return result

    async def _probe(self, key: Key) -> Result:
        if key.kind == KIND:
            is_news, pause = await self.prober.probe(key, datetime.now(UTC))
            await self._follow(key)
        else:
            is_news, pause = await self.descriptions.probe(key)
        if is_news:
            self.reconciles.add(key)
        return Result(requeue_after=pause)

    async def _follow(self, key: Key) -> None:
        run = self.store.run(key)
        if isinstance(run, TrainingRun):
            trainer = first_trainer(self.store.pods_of(key, run.metadata.uid))
            await self.keeper.follow(run, trainer, self._last_answer(run.metadata))

    async def _resync(self) -> None:
        """Reconcile everything again, whatever the watches have delivered."""
        while True:
            await asyncio.sleep(self._settings.reconcile.resync_seconds)
            await self._compare()
            self._enqueue_all(Urgency.REFRESH)

    async def _check_secrets(self) -> None:
        """In turn, so that each is read every few seconds, and many runs do not mean many requests at once."""
        while True:
            runs = (
                [run for run in self.store.runs.all() if run.status.phase in STARTED_PHASES] if self.is_leader() else []
            )
            for run in runs:
                await asyncio.sleep(max(SECRET_SECONDS / len(runs), SECRET_PAUSE_SECONDS))
                try:
                    await self.observer.check_secret(run)
                except ApiError as error:
                    log.warning("cannot read the Secret: %s", error, extra={"run": str(key_of(run))})
            if not runs:
                await asyncio.sleep(SECRET_PAUSE_SECONDS)

    async def _compare_after_relists(self) -> None:
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
        metrics, queue = self.metrics, self.reconciles.queue
        metrics.queue_depth.set_function(lambda: queue.depth)
        metrics.queue_age.set_function(lambda: queue.oldest_age(time.monotonic()))
        for kind in (*WATCHED_KINDS, *WATCHED_CHILDREN):
            watches = self.watching if kind in WATCHED_KINDS else self.children
            metrics.watch_idle.labels(kind).set_function(partial(watches.idle_seconds, kind))
            metrics.undecodable.labels(kind)  # at 0 from the start: the first one is an increase, too
        metrics.registry.register(RunCollector(self.store.runs.all, self._last_answer, self.is_leader))

    def _last_answer(self, metadata: Metadata) -> Progress | None:
        probe = self.answers.of(run_key(metadata), metadata.uid).trainer
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


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
