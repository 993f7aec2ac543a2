"""Queueing by `limits.activeRuns` of a namespace's TrainingPolicies, oldest run first.

A run is admitted by a status write of its own, before anything is created for it: active runs are counted by statuses.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from clotho.api.policy import Policy
from clotho.api.status import QUEUED, TrainingRunStatus
from clotho.api.training_policy import AnyPolicy, TrainingPolicy
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.run.policy import has_begun, present_policy
from clotho.plan.run.situation import Decision, Situation

AnyRun = TrainingRun | UnreadableRun


def admit(situation: Situation) -> Decision | None:
    """None: the run is admitted, or there is nothing to record before it starts."""
    stored, policy = situation.stored, present_policy(situation.observed)
    is_new = not has_begun(situation.run, situation.observed)
    is_queued = stored.queued_since is not None
    if not (is_new or is_queued or stored.phase == "Suspended"):
        return None
    limit = policy.limits.active_runs if policy is not None else None
    if policy is not None and limit is not None and situation.observed.runs_ahead >= limit:
        return Decision(
            phase="Pending",
            reason=QUEUED,
            message=_queued_message(policy, limit),
            components=situation.components,
            queued_since=stored.queued_since or situation.moment,
        )
    if limit is None and not is_queued and not (is_new and situation.policy is not None):
        return None
    return Decision(
        phase="Pending",
        reason="Admitted",
        message="Admitted: the pods are being created.",
        components=situation.components,
        policy=situation.policy,
        resolved=situation.run.status.resolved,
    )


def _queued_message(policy: Policy, limit: int) -> str:
    runs = "1 active run" if limit == 1 else f"{limit} active runs"
    allow = "allows" if len(policy.names) == 1 else "allow"
    return f"Queued: {policy.title} {allow} {runs} in this namespace."


def limits_active_runs(policy: AnyPolicy) -> bool:
    return isinstance(policy, TrainingPolicy) and policy.spec.limits.active_runs is not None


def is_admitted(status: TrainingRunStatus) -> bool:
    if status.is_finished or status.phase == "Suspended" or status.queued_since is not None:
        return False
    return status.policy is not None or status.phase != "Pending" or status.attempt > 0


def is_queueing(run: AnyRun) -> bool:
    """It is new, queued, or about to be resumed. One that was refused or waits for something else is not."""
    status = run.status
    if is_admitted(status) or status.is_finished or run.metadata.is_being_deleted or isinstance(run, UnreadableRun):
        return False
    is_queued = status.queued_since is not None or status.observed_generation < 0 or status.phase == "Suspended"
    return is_queued and not run.spec.suspend and not run.spec.stop


def runs_ahead(run: AnyRun, others: Iterable[AnyRun], taking: Collection[str]) -> int:
    """How many are admitted, about to be (by uid), or were queued before."""
    return sum(
        is_admitted(other.status)
        or other.metadata.uid in taking
        or (is_queueing(other) and _age_order(other) < _age_order(run))
        for other in others
        if other.metadata.uid != run.metadata.uid
    )


def _age_order(run: AnyRun) -> tuple[datetime, str]:
    return run.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), run.metadata.uid
