"""Environments with autoscaling: more pods while the trainer waits for data, fewer while data waits for the trainer.

Raised quickly, by doubling, and lowered slowly, by an eighth: after a cut of an eighth a trainer that never waited
waits for less than the share that raises the number again. A number that proved too small is not tried again for an
hour, and is left again for the one before it: so the number comes to rest.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from clotho.api.status import AutoscalingReason, AutoscalingStatus
from clotho.plan.model import Event
from clotho.plan.run.completion import has_trained_enough
from clotho.plan.run.situation import Situation

WAITING_SHARE: Final = 0.2  # of a step; more means that the environments are too slow,
WAITING_STEPS: Final = 3  # when it was so in this many observed steps in a row,
FULL_ENGINE: Final = 0.8  # unless the engine is as full as this: then the GPU is the limit
IDLE_SHARE: Final = 0.05  # of a step; less is no waiting
FULL_QUEUE: Final = timedelta(seconds=300)
COOL_DOWN: Final = timedelta(seconds=60)
TOO_SMALL_FOR: Final = timedelta(hours=1)


class Signals(Struct, frozen=True, kw_only=True):
    """What was observed of one step."""

    step: int
    waiting_share: float
    occupancy: float | None = None  # None: the engine has no known limit
    has_full_queue: bool = False
    is_ready: bool = True  # all pods of the environment

    @property
    def is_waiting(self) -> bool:
        return self.waiting_share > WAITING_SHARE

    @property
    def is_idle(self) -> bool:
        """Data waited for the trainer, and never the other way round."""
        return self.has_full_queue and self.waiting_share < IDLE_SHARE


class Scaling(Struct, frozen=True, kw_only=True):
    environments: tuple[AutoscalingStatus, ...]
    notices: tuple[Event, ...] = ()


def autoscale(situation: Situation) -> Scaling:
    """Environments without autoscaling, and those switched off with replicas 0, are not in it."""
    known = {each.name: each for each in situation.run.status.autoscaling}
    environments, notices = [], []
    for spec, component in zip(situation.run.spec.environments, situation.components.environments, strict=True):
        if spec.autoscaling is None or not spec.replicas:
            continue
        before = known.get(spec.name) or AutoscalingStatus(name=spec.name, target=spec.replicas)
        seen = _signals(situation, is_ready=component.is_ready)
        after = decide(before, (spec.replicas, spec.most_replicas), seen, situation.moment)
        environments.append(after)
        if after.change_time != before.change_time and after.message:
            notices.append(Event(type="Normal", reason="Scaled", message=f"{component.title}: {after.message}"))
    return Scaling(environments=tuple(environments), notices=tuple(notices))


def _signals(situation: Situation, *, is_ready: bool) -> Signals | None:
    report, probe = situation.progress, situation.observed.probes.api_server
    if report is None or report.waiting_share is None or has_trained_enough(situation):
        return None
    queue = probe.answer if probe is not None else None
    limit = situation.run.spec.training.max_off_policy_batches
    return Signals(
        step=report.step,
        waiting_share=report.waiting_share,
        occupancy=report.occupancy,
        has_full_queue=queue is not None and queue.batches_ready >= limit,
        is_ready=is_ready,
    )


def decide(
    before: AutoscalingStatus, limits: tuple[int, int], seen: Signals | None, now: datetime
) -> AutoscalingStatus:
    """One decision for each step that was observed; limits that were changed by hand apply at once."""
    least, most = limits
    allowed = min(max(least, before.target), most)
    if allowed != before.target:
        return AutoscalingStatus(name=before.name, target=allowed, change_time=now, step=before.step)
    if seen is None or seen.step == before.step:
        return before
    if seen.step < before.step:  # the trainer resumed from a checkpoint
        return msgspec.structs.replace(before, step=seen.step, waiting_steps=0, full_since=None)
    after = _observe(before, seen, now)
    has_cooled_down = before.change_time is None or now - before.change_time >= COOL_DOWN
    if after.waiting_steps >= WAITING_STEPS and has_cooled_down:
        return _raise(after, most, seen, now)
    if after.full_since is not None and now - after.full_since >= FULL_QUEUE:
        return _lower(after, least, now)
    return after


def _observe(before: AutoscalingStatus, seen: Signals, now: datetime) -> AutoscalingStatus:
    """A number that is not ready yet cannot be too small."""
    is_limited = before.reason in ("AtMaximum", "EngineFull")
    is_relieved = is_limited and not seen.is_waiting
    return msgspec.structs.replace(
        before,
        step=seen.step,
        waiting_steps=min(before.waiting_steps + 1, WAITING_STEPS) if seen.is_waiting and seen.is_ready else 0,
        full_since=(before.full_since or now) if seen.is_idle else None,
        reason="Steady" if is_relieved else before.reason,
        message="" if is_relieved else before.message,
    )


def _raise(state: AutoscalingStatus, most: int, seen: Signals, now: datetime) -> AutoscalingStatus:
    waits = f"waited {seen.waiting_share:.0%} of the step for data"
    if seen.occupancy is not None and seen.occupancy >= FULL_ENGINE:
        message = f"Not raised: the trainer {waits}, but the inference engine was {seen.occupancy:.0%} full; add GPUs."
        return msgspec.structs.replace(state, reason="EngineFull", message=message)
    if state.target >= most:
        message = f"Not raised: the trainer {waits}, but autoscaling.max is {most}."
        return msgspec.structs.replace(state, reason="AtMaximum", message=message)
    engine = f" while the inference engine was {seen.occupancy:.0%} full" if seen.occupancy is not None else ""
    larger = state.previous if state.previous > state.target else 2 * state.target
    return _changed(state, min(larger, most), "Raised", f"the trainer {waits}{engine}.", now)


def _lower(state: AutoscalingStatus, least: int, now: datetime) -> AutoscalingStatus:
    smaller = state.target - max(1, state.target // 8)
    raised_at = state.change_time if state.previous < state.target else None
    if raised_at is not None and now - raised_at < TOO_SMALL_FOR:
        smaller = max(smaller, state.previous + 1)
    smaller = max(smaller, least)
    if smaller >= state.target:
        return state
    why = f"batches have waited for the trainer for {FULL_QUEUE.total_seconds():.0f} s."
    return _changed(state, smaller, "Lowered", why, now)


def _changed(
    state: AutoscalingStatus, target: int, reason: AutoscalingReason, why: str, now: datetime
) -> AutoscalingStatus:
    return AutoscalingStatus(
        name=state.name,
        target=target,
        previous=state.target,
        change_time=now,
        reason=reason,
        message=f"{reason} from {state.target} to {target}: {why}",
        step=state.step,
    )
