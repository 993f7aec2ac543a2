"""One pass over one run: observe, plan, apply, one status write, then events. All judgement is in `plan`."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from clotho.api.training_run import TrainingRun
from clotho.cluster.apply import NotLeader, Writer
from clotho.cluster.cache import RunKey
from clotho.cluster.events import EventPoster
from clotho.cluster.observe import Observer
from clotho.cluster.outcomes import ApiError, Conflict, NotFound, Transient
from clotho.cluster.store import AnyRun, Store, run_key
from clotho.manager.agenda import Agenda
from clotho.manager.metrics import Metrics
from clotho.plan.model import RESTARTING, STALLED, Event, Plan
from clotho.plan.plan import plan
from clotho.plan.settings import PlanSettings

log = logging.getLogger(__name__)


class Reconciler:
    """`look_at_pods(key)` is called after each pass, for the prober to decide whether there is somebody new to ask."""

    def __init__(
        self,
        *,
        store: Store,
        observer: Observer,
        writer: Writer,
        poster: EventPoster,
        agenda: Agenda[RunKey],
        metrics: Metrics,
        settings: PlanSettings,
        look_at_pods: Callable[[RunKey], None],
    ) -> None:
        self._store, self._observer, self._writer, self._poster = store, observer, writer, poster
        self._agenda, self._metrics, self._settings = agenda, metrics, settings
        self._look_at_pods = look_at_pods

    async def work(self, key: RunKey) -> None:
        """Never raises: a run that cannot be handled comes back later and disturbs no other."""
        started = time.monotonic()
        try:
            await self._pass(key)
        except NotLeader:
            self._agenda.done(key)
        except ApiError as error:
            self._fail(key, error, error.retry_after if isinstance(error, Transient) else None)
        except Exception as error:
            log.exception("the pass failed unexpectedly", extra={"run": str(key)})
            self._fail(key, error, None)
        finally:
            self._metrics.reconcile.observe(time.monotonic() - started)

    async def _pass(self, key: RunKey) -> None:
        run = self._store.run(key)
        if run is None:
            self._agenda.forget(key)
            self._agenda.done(key)
            return
        observed = await self._observer.observe(key, run)
        planned = plan(run, observed, datetime.now(UTC), self._settings)
        with self._observer.places.while_writing(run, planned.status):
            await self._carry_out(run, planned)
        self._agenda.done(key, _monotonic(planned.wake_at))
        if planned.status is not None:
            self._agenda.add(key, time.monotonic())
        self._look_at_pods(key)

    async def _carry_out(self, run: AnyRun, planned: Plan) -> None:
        """Actions and status rest on the same stored status, so they may go out together; events follow the status."""
        actions = self._writer.carry_out(run, planned.actions)
        if planned.status is None:
            await actions
        else:
            acted, written = await asyncio.gather(
                actions, self._writer.write_status(run, planned.status), return_exceptions=True
            )
            if not isinstance(written, BaseException):
                self._count_transition(run, written)
                self._announce(written, planned.events)
            for outcome in (written, acted):
                if isinstance(outcome, BaseException):
                    raise outcome

    def _announce(self, run: AnyRun, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.reason == RESTARTING:
                self._metrics.restarts.labels(event.cause).inc()
            elif event.reason == STALLED:
                self._metrics.stalls.labels(event.cause).inc()
            log.info("%s: %s", event.reason, event.message, extra={"run": str(run_key(run.metadata))})
            self._poster.post(run, event)

    def _count_transition(self, before: AnyRun, after: AnyRun) -> None:
        first = before.status.running_time is None and after.status.running_time is not None
        if first and isinstance(after, TrainingRun) and after.status.attempt <= 1:
            created, ready = after.metadata.creation_timestamp, after.status.running_time
            if created is not None and ready is not None:
                self._metrics.startup.observe(max(0.0, (ready - created).total_seconds()))

    def _fail(self, key: RunKey, error: Exception, retry_after: float | None) -> None:
        self._metrics.reconcile_errors.labels(type(error).__name__).inc()
        delay = self._agenda.failed(key, time.monotonic(), retry_after)
        if isinstance(error, Conflict):
            return  # somebody was faster; the cache is fresh again
        if isinstance(error, NotFound) and self._store.run(key) is None:
            return
        log.warning("trying again in %.1f s: %s", delay, error, extra={"run": str(key)})


def _monotonic(at: datetime | None) -> float | None:
    return None if at is None else time.monotonic() + max(0.0, (at - datetime.now(UTC)).total_seconds())
