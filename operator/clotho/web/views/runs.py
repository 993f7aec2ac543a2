"""A run as a row of the table, and its position in the queue."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from clotho.api.training_run import TrainingRun, parse
from clotho.workspace.progress import progress_of, rewards_of

Object = Mapping[str, Any]
View = dict[str, Any]
LONGEST_MESSAGE: Final = 600


def run_row(body: Object) -> View:
    run, metadata, status = parse(body), body["metadata"], body.get("status", {})
    spec = run.spec if isinstance(run, TrainingRun) else None
    progress = progress_of(body)
    asked = body.get("spec", {}).get("training", {}).get("steps", 0)
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "phase": run.status.phase,
        "message": _message(run.status.message or "Waiting for the operator."),
        "isQueued": run.status.is_queued,
        "stalled": run.status.stall.cause if run.status.stall else "",
        "step": progress.get("step", 0),
        "steps": progress.get("totalSteps", asked),
        "secondsLeft": progress.get("etaSeconds"),
        "progressTime": status.get("writtenAt"),
        "reward": progress.get("rewardMean"),
        "rewards": sorted(rewards_of(body).items()),
        "tokensPerSecond": progress.get("tokensPerSecond"),
        "gpus": spec.all_gpus if spec else None,
        "model": spec.model.name if spec else "",
        "environments": [each.name for each in spec.environments] if spec else [],
        "restarts": run.status.restarts,
        "created": metadata.get("creationTimestamp"),
        "ended": status.get("completionTime"),
    }


def _message(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def queue_positions(bodies: Iterable[Object]) -> dict[str, int]:
    """From 1 in each namespace, the oldest first, as the operator admits them. Kueue's queues have an order of their
    own, which its objects do not show."""
    waiting = [body for body in bodies if body.get("status", {}).get("queuedSince")]
    positions: dict[str, int] = {}
    counted: dict[str, int] = {}
    for body in sorted(waiting, key=_age_order):
        namespace = body["metadata"].get("namespace", "")
        counted[namespace] = counted.get(namespace, 0) + 1
        positions[f"{namespace}/{body['metadata']['name']}"] = counted[namespace]
    return positions


def _age_order(body: Object) -> tuple[datetime, str]:
    created = body["metadata"].get("creationTimestamp")
    return (
        datetime.fromisoformat(created) if created else datetime.max.replace(tzinfo=UTC),
        body["metadata"].get("uid", ""),
    )
