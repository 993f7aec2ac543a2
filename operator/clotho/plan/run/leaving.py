"""What is kept of a run's pods: of which, under which names, and how often the history is fetched."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from clotho.api.history import KeptLog, end_of_log
from clotho.api.names import INFERENCE, KIND, TRAINER
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun
from clotho.plan.model import Delete, Event, Plan
from clotho.plan.pods import ContainerStatus, Pod
from clotho_contract import history, untrusted
from clotho_contract.history import History
from clotho_contract.progress import Progress

SHORTEST_PAUSE: Final = timedelta(seconds=60)
UPDATES: Final = 60  # of a curve, over the time that the run has taken so far


def leaving(run: TrainingRun, planned: Plan[TrainingRunStatus], pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Pods that are about to be deleted; of a run that is about to be finished, its trainer's and those that
    have ended, which anybody may delete from now on."""
    deleted = {action.uid for action in planned.actions if isinstance(action, Delete) and action.key.kind == "Pod"}
    if run.metadata.is_being_deleted or any(action.key.kind == KIND for action in planned.actions):
        return ()
    ends = is_ending(run, planned)
    return tuple(pod for pod in pods if pod.uid in deleted or (ends and (pod.has_ended or pod.component == TRAINER)))


def is_ending(run: TrainingRun, planned: Plan[TrainingRunStatus]) -> bool:
    return planned.status is not None and planned.status.is_finished and not run.status.is_finished


def containers_with_logs(pod: Pod) -> tuple[ContainerStatus, ...]:
    """Those that have started; of the init containers, the one that failed."""
    failed = [
        each
        for each in pod.status.init_container_statuses
        if each.state.terminated is not None and each.state.terminated.exit_code
    ]
    started = [each for each in pod.status.container_statuses if each.state.running or each.state.terminated]
    return (*failed, *started)


def title_of(pod: Pod) -> str:
    """`trainer`, `trainer-1`, `api-server`, `inference-0`, or an environment's name and index."""
    if pod.environment:
        return f"{pod.environment}-{pod.index}"
    return f"{pod.component}-{pod.index}" if pod.index or pod.component == INFERENCE else pod.component


def kept_log(run: TrainingRun, pod: Pod, container: str, text: str) -> KeptLog:
    """Without the line in which a trainer leaves its history."""
    lines = [line for line in text.splitlines() if _history_in(line) is None]
    return KeptLog(
        attempt=pod.attempt or run.status.attempt,
        restarts=pod.restarts_before,
        title=title_of(pod),
        container=container,
        text=end_of_log("\n".join(lines)),
    )


def history_in_log(text: str) -> History:
    """What a trainer left in the last lines of its log; empty where it left nothing."""
    found = (_history_in(line) for line in reversed(text.splitlines()))
    return next((each for each in found if each is not None), History())


def _history_in(line: str) -> History | None:
    if not line.startswith("{") or f'"{history.LOG_KEY}": {{' not in line:
        return None
    try:
        return history.decode(bytes(untrusted.decode(line, dict[str, msgspec.Raw])[history.LOG_KEY]))
    except (msgspec.MsgspecError, KeyError):
        return None


def with_last_step(known: History, report: Progress | None) -> History:
    """A trainer that is stopped finishes its step; the figures of that one are in its termination message alone."""
    if report is None or report.step <= max(known.series.steps, default=0):
        return known
    figures = {
        "reward/mean": report.reward_mean,
        "percent_correct": report.percent_correct,
        "loss": report.loss,
        "tokens_per_second": report.tokens_per_second,
        "seconds_per_step": report.seconds_per_step,
    }
    row = history.recorded({name: value for name, value in figures.items() if value is not None})
    return history.merged(known, History(series=history.series_of({report.step: row}))) if row else known


def is_fetch_due(run: TrainingRun, reached: int, asked: int, asked_at: datetime | None, now: datetime) -> bool:
    """When there are new steps: at once for the first, then less often the longer a run lasts."""
    if reached <= asked or run.status.phase != "Running":
        return False
    began = run.status.start_time or now
    return asked_at is None or now - asked_at >= max(SHORTEST_PAUSE, (now - began) / UPDATES)


def logs_kept(run: TrainingRun, attempt: int) -> Event:
    name, namespace = run.metadata.name, run.metadata.namespace
    return Event(
        type="Normal",
        reason="LogsKept",
        message=f"The end of the logs is kept: clotho run logs {name} -n {namespace} --attempt {attempt}",
    )


def first_trainer(pods: Iterable[Pod]) -> Pod | None:
    """The newest pod that has a history."""
    found = [pod for pod in pods if pod.component == TRAINER and not pod.is_follower]
    return max(found, key=lambda pod: pod.attempt, default=None)
