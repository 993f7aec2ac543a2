"""One pass over one object of ours: observe, plan, apply, one status write, then events. All judgement is in `plan`."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from clotho.api.environment import Environment, UnreadableEnvironment
from clotho.api.inference_tests import InferenceTest, UnreadableTest
from clotho.api.training_run import TrainingRun
from clotho.cluster.apply import NotLeader, Writer
from clotho.cluster.cache import Key
from clotho.cluster.events import EventPoster
from clotho.cluster.observe import Observer
from clotho.cluster.outcomes import ApiError, Conflict, NotFound, Transient
from clotho.cluster.store import AnyOwner, Store, key_of
from clotho.manager.agenda import Agenda
from clotho.manager.metrics import Metrics
from clotho.plan.environments import plan_environment
from clotho.plan.inference_tests import plan_test
from clotho.plan.model import RESTARTING, STALLED, Event, Plan
from clotho.plan.run.plan import plan
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
        agenda: Agenda[Key],
        metrics: Metrics,
        settings: PlanSettings,
        look_at_pods: Callable[[Key], None],
    ) -> None:
        self._store, self._observer, self._writer, self._poster = store, observer, writer, poster
        self._agenda, self._metrics, self._settings = agenda, metrics, settings
        self._look_at_pods = look_at_pods

    async def work(self, key: Key) -> None:
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

    async def _pass(self, key: Key) -> None:
        owner = self._store.find(key)
        if owner is None:
            self._agenda.forget(key)
            self._agenda.done(key)
            return
        planned = await self._plan(key, owner)
        self._agenda.done(key, _monotonic(planned.wake_at))
        if planned.status is not None:
            self._agenda.add(key, time.monotonic())
        self._look_at_pods(key)

    async def _plan(self, key: Key, owner: AnyOwner) -> Plan[Any]:
        """Plan and carry out; each kind has its own eyes and its own planner, the rest is the same."""
        match owner:
            case Environment() | UnreadableEnvironment():
                seen = await self._observer.observe_environment(key, owner)
                described = plan_environment(owner, seen, datetime.now(UTC), self._settings)
                await self._carry_out(owner, described)
                if described.status is not None:
                    self._store.announce_to_users(owner.metadata)
                return described
            case InferenceTest() | UnreadableTest():
                trial = await self._observer.observe_test(key, owner)
                tested = plan_test(owner, trial, datetime.now(UTC), self._settings)
                await self._carry_out(owner, tested)
                return tested
        observed = await self._observer.observe(key, owner)
        planned = plan(owner, observed, datetime.now(UTC), self._settings)
        with self._observer.places.while_writing(owner, planned.status):
            await self._carry_out(owner, planned)
        return planned

    async def _carry_out(self, owner: AnyOwner, planned: Plan[Any]) -> None:
        """Actions and status rest on the same stored status, so they may go out together; events follow the status."""
        actions = self._writer.carry_out(owner, planned.actions)
        if planned.status is None:
            await actions
        else:
            acted, written = await asyncio.gather(
                actions, self._writer.write_status(owner, planned.status), return_exceptions=True
            )
            if not isinstance(written, BaseException):
                self._count_transition(owner, written)
                self._announce(written, planned.events)
            for outcome in (written, acted):
                if isinstance(outcome, BaseException):
                    raise outcome

    def _announce(self, about: AnyOwner, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.reason == RESTARTING:
                self._metrics.restarts.labels(event.cause).inc()
            elif event.reason == STALLED:
                self._metrics.stalls.labels(event.cause).inc()
            log.info("%s: %s", event.reason, event.message, extra={"run": str(key_of(about))})
            self._poster.post(about, event)

    def _count_transition(self, before: AnyOwner, after: AnyOwner) -> None:
        if not isinstance(before, TrainingRun) or not isinstance(after, TrainingRun):
            return
        first = before.status.running_time is None and after.status.running_time is not None
        if first and after.status.attempt <= 1:
            created, ready = after.metadata.creation_timestamp, after.status.running_time
            if created is not None and ready is not None:
                self._metrics.startup.observe(max(0.0, (ready - created).total_seconds()))

    def _fail(self, key: Key, error: Exception, retry_after: float | None) -> None:
        self._metrics.reconcile_errors.labels(type(error).__name__).inc()
        delay = self._agenda.failed(key, time.monotonic(), retry_after)
        if isinstance(error, Conflict):
            return  # somebody was faster; the cache is fresh again
        if isinstance(error, NotFound) and self._store.find(key) is None:
            return
        log.warning("trying again in %.1f s: %s", delay, error, extra={"run": str(key)})


def _monotonic(at: datetime | None) -> float | None:
    return None if at is None else time.monotonic() + max(0.0, (at - datetime.now(UTC)).total_seconds())
