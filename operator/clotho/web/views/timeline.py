"""The life of a run: phases, restarts, stalls, checkpoints and evaluations, oldest first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from clotho.api.phases import PHASES
from clotho_contract.history import Evaluation

Object = Mapping[str, Any]
Kind = Literal["phase", "restart", "stall", "checkpoint", "evaluation", "event"]
MOST: Final = 200
_KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(PHASES, "phase"),
    "Restarting": "restart",
    "Evicted": "restart",
    "Stalled": "stall",
}


class Moment(Struct, frozen=True, kw_only=True, order=True, rename="camel"):
    time: str
    kind: Kind
    title: str
    text: str = ""
    is_warning: bool = False


def timeline(run: Object, events: Iterable[Object], evaluations: Sequence[Evaluation]) -> list[Moment]:
    """Kubernetes keeps events for an hour; what the status has of the time before stays."""
    reported = [_event(each) for each in events]
    moments = [*_from_status(run, {moment.title for moment in reported}), *reported, *map(_evaluation, evaluations)]
    return sorted(set(moments))[-MOST:]


def _from_status(run: Object, reported: set[str]) -> Iterable[Moment]:
    status, created = run.get("status", {}), run["metadata"].get("creationTimestamp", "")
    yield Moment(time=created, kind="phase", title="Created")
    times = {"Starting": status.get("startTime"), "Running": status.get("runningTime")}
    end = status.get("phase", "") if status.get("completionTime") else None
    times |= {end: status["completionTime"]} if end else {}
    for phase, time in times.items():
        if time and phase not in reported:
            text = status.get("message", "") if phase == end else ""
            yield Moment(time=time, kind="phase", title=phase, text=text, is_warning=phase == "Failed")
    if stall := status.get("stall"):
        yield Moment(time=stall["since"], kind="stall", title=f"Stalled: {stall['cause']}", is_warning=True)
    progress, checkpoint = status.get("progress") or {}, status.get("checkpoint")
    if checkpoint and progress.get("lastStepTime"):
        title = f"Newest checkpoint: step {checkpoint['step']}"
        yield Moment(time=progress["lastStepTime"], kind="checkpoint", title=title, text=checkpoint.get("path", ""))
    for part in components_of(run):
        if (exit_ := part.get("lastExit")) and exit_.get("time"):
            title = f"{part['name']}: {exit_.get('reason', '')}"
            yield Moment(
                time=exit_["time"], kind="restart", title=title, text=exit_.get("message", ""), is_warning=True
            )


def components_of(run: Object) -> list[Object]:
    parts = run.get("status", {}).get("components") or {}
    fixed = [parts.get(name) for name in ("apiServer", "trainer", "inference")]
    return [part for part in (*fixed, *parts.get("environments", ()), parts.get("exporter")) if part]


def _event(event: Object) -> Moment:
    reason = str(event.get("reason", ""))
    repeated = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
    return Moment(
        time=event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp", ""),
        kind=_KINDS.get(reason, "event"),
        title=reason,
        text=f"{event.get('message', '')}{repeated}",
        is_warning=event.get("type") == "Warning",
    )


def _evaluation(evaluation: Evaluation) -> Moment:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.figures.items())
    title = f"Evaluation of {evaluation.environment} at step {evaluation.step}"
    return Moment(time=evaluation.time, kind="evaluation", title=title, text=figures)
