"""Reconciles one object of ours: observe, plan, apply, one status write, then events. All decisions are in `plan`."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from clotho.api.environment import Environment, UnreadableEnvironment
from clotho.api.inference_tests import InferenceTest, UnreadableTest
from clotho.api.training_run import TrainingRun
from clotho.cluster.apply import NotLeader, Writer
from clotho.cluster.cache import Key
from clotho.cluster.keeping import Keeper
from clotho.cluster.observe import Observer
from clotho.cluster.outcomes import ApiError, Conflict, Forbidden, NotFound
from clotho.cluster.steering import Steering
from clotho.cluster.store import AnyOwner, Store, key_of
from clotho.manager.dispatch import Result, log_failure
from clotho.manager.metrics import Metrics
from clotho.manager.queue import Urgency
from clotho.plan.environments import plan_environment
from clotho.plan.inference_tests import plan_test
from clotho.plan.model import RESTARTING, STALLED, Action, Apply, Create, Event, Plan, Validate
from clotho.plan.run.deletion import plan_removal
from clotho.plan.run.plan import plan
from clotho.plan.settings import PlanSettings

log = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        *,
        store: Store,
        observer: Observer,
        writer: Writer,
        announcers: Sequence[Callable[[AnyOwner, Event], None]],
        steering: Steering,
        keeper: Keeper,
        metrics: Metrics,
        settings: PlanSettings,
    ) -> None:
        self._store, self._observer, self._writer, self._announcers = store, observer, writer, announcers
        self._steering, self._keeper = steering, keeper
        self._metrics, self._settings = metrics, settings

    async def reconcile(self, key: Key) -> Result:
        started = time.monotonic()
        try:
            await self._remove_leftovers(key)
            owner = self._store.find(key)
            if owner is None:
                self._steering.forget(key)
                self._keeper.forget(key)
                return Result(is_gone=True)
            return await self._plan(key, owner)
        except NotLeader:
            return Result()
        finally:
            self._metrics.reconcile.observe(time.monotonic() - started)

    async def _remove_leftovers(self, key: Key) -> None:
        """Of a run that is gone; another of its name may have been created since."""
        if (run := self._store.removed_runs.get(key)) is None:
            return
        others = [each for each in self._store.runs_in(key.namespace) if isinstance(each, TrainingRun)]
        objects = self._store.objects_of(key, run.metadata.uid)
        try:
            await self._writer.carry_out(run, plan_removal(run, objects, others))
        except Forbidden as error:
            log.warning("the empty claim of a deleted run stays: %s", error, extra={"run": str(key)})
        self._store.removed_runs.pop(key, None)

    def report(self, key: Key, error: Exception, delay: float) -> None:
        """A reconcile failed and is retried."""
        self._metrics.reconcile_errors.labels(type(error).__name__).inc()
        is_expected = isinstance(error, Conflict) or (isinstance(error, NotFound) and self._store.find(key) is None)
        if is_expected:  # another writer was faster; the cache is fresh again
            return
        if isinstance(error, ApiError):
            log.warning("retrying in %.1f s: %s", delay, error, extra={"run": str(key)})
        else:
            log_failure(key, error, delay)

    async def _plan(self, key: Key, owner: AnyOwner) -> Result:
        """Plan and carry out; each kind has its own observation and its own planner, the rest is the same."""
        match owner:
            case Environment() | UnreadableEnvironment():
                seen = await self._observer.observe_environment(key, owner)
                described = plan_environment(owner, seen, datetime.now(UTC), self._settings)
                await self._carry_out(owner, described)
                if described.status is not None:
                    self._store.announce_to_users(owner.metadata)
                return _result(described)
            case InferenceTest() | UnreadableTest():
                trial = await self._observer.observe_test(key, owner)
                tested = plan_test(owner, trial, datetime.now(UTC), self._settings)
                await self._carry_out(owner, tested)
                return _result(tested)
        observed = await self._observer.observe(key, owner)
        planned = plan(owner, observed, datetime.now(UTC), self._settings)
        retry_after: float | None = None
        if isinstance(owner, TrainingRun):
            trainer = observed.probes.trainer
            answer = trainer.answer if trainer else None
            retry_after = await self._keeper.keep(owner, planned, observed.pods, answer)
        with self._observer.admissions.while_writing(owner, planned.status):
            await self._carry_out(owner, planned)
        if planned.set_steps is not None:
            self._steering.send(key, planned.set_steps)
        return _result(planned, has_pods=bool(observed.pods), retry_after=retry_after)

    async def _carry_out(self, owner: AnyOwner, planned: Plan[Any]) -> None:
        """Actions and status rest on the same stored status, so they may go out together; events follow the status.

        The cache may be old. A status write would fail then, but pods would be made for a run that has ended.
        """
        if _makes_pods_again(planned.actions):
            await self._writer.check_is_current(owner)
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
            for announce in self._announcers:
                announce(about, event)

    def _count_transition(self, before: AnyOwner, after: AnyOwner) -> None:
        if not isinstance(before, TrainingRun) or not isinstance(after, TrainingRun):
            return
        first = before.status.running_time is None and after.status.running_time is not None
        if first and after.status.attempt <= 1:
            created, ready = after.metadata.creation_timestamp, after.status.running_time
            if created is not None and ready is not None:
                self._metrics.startup.observe(max(0.0, (ready - created).total_seconds()))


def _makes_pods_again(actions: Sequence[Action]) -> bool:
    """Of an owner that is not new: a new run gets its Secret with its first pods."""
    made = {action.key.kind for action in actions if isinstance(action, Create)}
    return "Pod" in made and "Secret" not in made


def _result(planned: Plan[Any], *, has_pods: bool = True, retry_after: float | None = None) -> Result:
    """Planned again at once after a status write, a dry run, and a write to the Secret: it may void tokens of pods."""
    wake_at = planned.wake_at
    until_due = None if wake_at is None else max(0.0, (wake_at - datetime.now(UTC)).total_seconds())
    pauses = [pause for pause in (until_due, retry_after) if pause is not None]
    was_dry_run = any(isinstance(action, Validate) for action in planned.actions)
    writes_secret = any(
        isinstance(action, Create | Apply) and action.key.kind == "Secret" for action in planned.actions
    )
    return Result(
        requeue=planned.status is not None or was_dry_run or (writes_secret and has_pods),
        requeue_after=min(pauses, default=None),
        urgency=Urgency.NEW if planned.can_wait else Urgency.CHANGED,
    )
