"""Whose turn it is: `limits.activeRuns` of a namespace's TrainingPolicies, oldest run first.

A run takes its place by a status write of its own, before anything is made for it: places can be counted by statuses.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from clotho.api.policy import Policy
from clotho.api.status import TrainingRunStatus
from clotho.api.training_policy import AnyPolicy, TrainingPolicy
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.run.policy import has_begun, present_policy
from clotho.plan.run.situation import Decision, Situation

AnyRun = TrainingRun | UnreadableRun


def admit(situation: Situation) -> Decision | None:
    """None: the run has its place, or there is nothing to note before it starts."""
    stored, policy = situation.stored, present_policy(situation.observed)
    is_new = not has_begun(situation.run, situation.observed)
    is_queued = stored.queued_since is not None
    if not (is_new or is_queued or stored.phase == "Suspended"):
        return None
    limit = policy.limits.active_runs if policy is not None else None
    if policy is not None and limit is not None and situation.observed.runs_ahead >= limit:
        return Decision(
            phase="Pending",
            reason="Queued",
            message=_patience(policy, limit),
            components=situation.components,
            queued_since=stored.queued_since or situation.moment,
        )
    if limit is None and not is_queued and not (is_new and situation.policy is not None):
        return None
    return Decision(
        phase="Pending",
        reason="Admitted",
        message="It is the run's turn; its pods are being created.",
        components=situation.components,
        policy=situation.policy,
        resolved=situation.run.status.resolved,
    )


def _patience(policy: Policy, limit: int) -> str:
    runs = "1 run is" if limit == 1 else f"{limit} runs are"
    return f"Waiting for its turn: by {policy.title}, {runs} at work in this namespace at the same time."


def limits_active_runs(policy: AnyPolicy) -> bool:
    return isinstance(policy, TrainingPolicy) and policy.spec.limits.active_runs is not None


def is_admitted(status: TrainingRunStatus) -> bool:
    if status.is_finished or status.phase == "Suspended" or status.queued_since is not None:
        return False
    return status.policy is not None or status.phase != "Pending" or status.attempt > 0


def is_queueing(run: AnyRun) -> bool:
    """It is new, in the queue, or about to be resumed. One that was refused or waits for something else is not."""
    status = run.status
    if is_admitted(status) or status.is_finished or run.metadata.is_being_deleted or isinstance(run, UnreadableRun):
        return False
    is_in_line = status.queued_since is not None or status.observed_generation < 0 or status.phase == "Suspended"
    return is_in_line and not run.spec.suspend and not run.spec.stop


def runs_ahead(run: AnyRun, others: Iterable[AnyRun], taking: Collection[str]) -> int:
    """How many hold a place, are about to take one (by uid), or were in line before."""
    return sum(
        is_admitted(other.status)
        or other.metadata.uid in taking
        or (is_queueing(other) and _age_order(other) < _age_order(run))
        for other in others
        if other.metadata.uid != run.metadata.uid
    )


def _age_order(run: AnyRun) -> tuple[datetime, str]:
    return run.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), run.metadata.uid
