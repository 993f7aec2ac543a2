"""Probes the pods of a run: which probes are due is decided by pure functions, the requests are made beside them."""

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from clotho.api.names import API_SERVER, EXPORTER, TRAINER, UID_LABEL
from clotho.api.phases import RESTING_PHASES
from clotho.api.training_run import TrainingRun
from clotho.cluster.cache import Key
from clotho.cluster.pod_http import ProbeFailed, http_get
from clotho.cluster.store import Store
from clotho.plan.model import Probe, Probes, QueueStatus
from clotho.plan.pods import Pod
from clotho.plan.run.progress import reported_step_time
from clotho_contract import progress, untrusted
from clotho_contract.api_protocol import ApiStatus
from clotho_contract.exports import ExportProgress
from clotho_contract.names import API_SERVER_PORT, INFERENCE_PORT, TRAINER_STATUS_PORT

Target = Literal["trainer", "api_server", "inference", "exporter"]
LONGEST_PAUSE: Final = 4.0  # times the interval


class ProbeTimes(Struct, frozen=True, kw_only=True):
    interval: float = 30.0
    startup: float = 2.0
    timeout: float = 3.0


def queue_status(answer: ApiStatus, batch_size: int) -> QueueStatus:
    return QueueStatus(
        current_step=answer.current_step,
        queue_groups=answer.queue_size,
        batches_ready=answer.queue_sequences // batch_size + answer.leased_batches,
        is_full=answer.full,
        environments_connected=answer.connected_count,
        storage_problem=answer.storage_problem[:500],
        state_lost=answer.state_lost[:500],
    )


class Question(Struct, frozen=True):
    target: Target
    pod: Pod


def questions(run: TrainingRun, pods: tuple[Pod, ...], known: Probes, now: datetime) -> tuple[Question, ...]:
    """The trainer is always probed; the others only once it does not answer or has made no step for a while:
    they are needed to find the cause of a stall, and a thousand healthy runs should cost little. Autoscaling needs the
    length of the API server's queue as well; and a new API server may have lost the state of the last."""
    if run.status.is_finished:
        exporter = _only(pods, EXPORTER)
        return (Question("exporter", exporter),) if exporter else ()
    trainer, api_server = _only(pods, TRAINER), _only(pods, API_SERVER)
    due = [Question("trainer", trainer)] if trainer else []
    is_doubtful = is_suspicious(run, known, now)
    if api_server and (is_doubtful or _has_autoscaling(run) or _is_unknown(api_server, known.api_server)):
        due.append(Question("api_server", api_server))
    if is_doubtful:
        due += [Question("inference", trainer)] if trainer and not run.spec.is_inline else []
    return tuple(due)


def _is_unknown(pod: Pod, last: Probe[QueueStatus] | None) -> bool:
    return pod.is_ready and (last is None or last.answer is None or last.pod_uid != pod.uid)


def _has_autoscaling(run: TrainingRun) -> bool:
    return any(environment.autoscaling for environment in run.spec.environments)


def is_suspicious(run: TrainingRun, known: Probes, now: datetime) -> bool:
    if run.status.stall is not None:
        return True
    if known.trainer is None or known.trainer.answer is None:
        return known.trainer is not None
    return _seconds_since_step(run, known.trainer.answer, now) > run.spec.stall.after_seconds / 2


def _seconds_since_step(run: TrainingRun, answer: progress.Progress, now: datetime) -> float:
    moved = reported_step_time(answer) or run.status.running_time
    return (now - moved).total_seconds() if moved is not None else 0.0


def pause(run: TrainingRun, known: Probes, times: ProbeTimes, now: datetime) -> float | None:
    """Seconds until the next round, None when there is nothing left to probe."""
    if not _may_speak(run):
        return None
    wanted = _running_pause(run, known, times, now) if run.status.phase == "Running" else times.startup
    return min(wanted, max(0.5, run.spec.stall.after_seconds / 4))


def _running_pause(run: TrainingRun, known: Probes, times: ProbeTimes, now: datetime) -> float:
    """Long steps are probed less often: a thousand runs of them should cost little."""
    answer = known.trainer.answer if known.trainer else None
    if answer is None or _has_autoscaling(run) or is_suspicious(run, known, now):
        return times.interval
    half = _seconds_since_step(run, answer, now) / 2
    return min(max(times.interval, half), LONGEST_PAUSE * times.interval)


def _may_speak(run: TrainingRun) -> bool:
    is_exporting = run.status.is_finished and run.status.export is not None and not run.status.export.is_over
    return is_exporting or run.status.phase not in RESTING_PHASES


def _only(pods: tuple[Pod, ...], component: str) -> Pod | None:
    """The newest running pod with an address; of several trainer pods, the first, which alone reports progress."""
    found = [
        pod
        for pod in pods
        if pod.component == component and not pod.is_follower and pod.status.pod_ip and pod.status.phase == "Running"
    ]
    return max(found, key=lambda pod: pod.attempt, default=None)


class Answers:
    """The last answer of every component that was probed, of each run: one of the same name is another run."""

    def __init__(self) -> None:
        self._known: dict[Key, dict[str, Probes]] = {}  # by the run's uid
        self.unprobed: set[Key] = set()  # runs whose rounds ended because there was no pod to probe

    def of(self, key: Key, uid: str) -> Probes:
        return self._known.get(key, {}).get(uid, Probes())

    def keep(self, key: Key, uid: str, probes: Probes) -> None:
        self._known.setdefault(key, {})[uid] = probes

    def keep_termination(self, key: Key, pod: Pod) -> None:
        """A trainer's termination message has its final progress: that counts as its last answer."""
        reported = pod.termination if pod.component == TRAINER and not pod.is_follower else None
        if reported is not None and reported.progress is not None:
            final = Probe(pod_uid=pod.uid, taken_at=datetime.now(UTC), answer=reported.progress)
            uid = pod.metadata.labels.get(UID_LABEL, "")
            self.keep(key, uid, msgspec.structs.replace(self.of(key, uid), trainer=final))

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)
        self.unprobed.discard(key)

    def forget_all(self) -> None:
        self._known.clear()
        self.unprobed.clear()


def operator_token(store: Store, key: Key) -> str | None:
    """What the operator's requests to the pods of a run carry."""
    run = store.run(key)
    secret = store.secret_of(key, run.metadata.uid) if run is not None else None
    encoded = secret.operator_token if secret else ""
    return base64.b64decode(encoded).decode(errors="replace") if encoded else None  # a hand edit may be binary


class Prober:
    """`on_failure(target)` is called for every probe without a usable answer."""

    def __init__(self, store: Store, answers: Answers, times: ProbeTimes, on_failure: Callable[[str], None]) -> None:
        self._store, self._answers, self._times, self._on_failure = store, answers, times, on_failure

    def has_unprobed_pod(self, key: Key) -> bool:
        """Whether a trainer, or an exporter, is up that was never probed, or not since it came back."""
        run = self._store.run(key)
        if not isinstance(run, TrainingRun) or not _may_speak(run):
            return False
        uid = run.metadata.uid
        pods, known = self._store.pods_of(key, uid), self._answers.of(key, uid)
        is_over = run.status.is_finished
        pod, last = (_only(pods, EXPORTER), known.exporter) if is_over else (_only(pods, TRAINER), known.trainer)
        return pod is not None and (key in self._answers.unprobed or last is None or last.pod_uid != pod.uid)

    async def probe(self, key: Key, now: datetime) -> tuple[bool, float | None]:
        """One round: whether the answers have something new, and when to probe again."""
        run = self._store.run(key)
        if not isinstance(run, TrainingRun) or run.metadata.is_being_deleted:
            self._answers.forget(key)
            return False, None
        if not _may_speak(run):
            return False, None
        uid = run.metadata.uid
        before = self._answers.of(key, uid)
        after = before
        pods = self._store.pods_of(key, uid)
        due = questions(run, pods, before, now)
        if not due:
            self._answers.unprobed.add(key)
            return False, None  # the next pod starts the rounds again, also one that lost its labels for a while
        self._answers.unprobed.discard(key)
        for question in due:
            after = msgspec.structs.replace(after, **{question.target: await self._ask(key, run, question)})
        if self._answers.of(key, uid) == before:  # else its termination message has arrived meanwhile
            self._answers.keep(key, uid, after)
        latest = self._answers.of(key, uid)
        return _says(latest) != _says(before), pause(run, latest, self._times, now)

    async def _ask(self, key: Key, run: TrainingRun, question: Question) -> Probe[Any]:
        pod = question.pod
        try:
            answer = await self._fetch(question.target, run, pod.status.pod_ip, operator_token(self._store, key))
        except ProbeFailed as failure:
            self._on_failure(question.target)
            return Probe(pod_uid=pod.uid, taken_at=datetime.now(UTC), problem=str(failure))
        return Probe(pod_uid=pod.uid, taken_at=datetime.now(UTC), answer=answer)

    async def _fetch(
        self, target: Target, run: TrainingRun, host: str, token: str | None
    ) -> progress.Progress | ExportProgress | QueueStatus | bool:
        limit = self._times.timeout
        if target == "trainer":
            answer = _decode(await http_get(host, TRAINER_STATUS_PORT, "/progress", None, limit), progress.Progress)
            return progress.bounded(answer)
        if target == "exporter":
            return _decode(await http_get(host, TRAINER_STATUS_PORT, "/progress", None, limit), ExportProgress)
        if target == "api_server":
            status = _decode(await http_get(host, API_SERVER_PORT, "/status", token, limit), ApiStatus)
            return queue_status(status, run.spec.training.batch_size)
        await http_get(host, INFERENCE_PORT, "/health", token, limit)
        return True


T = TypeVar("T")


def _decode(body: bytes, answer: type[T]) -> T:
    try:
        return untrusted.decode(body, answer)
    except msgspec.MsgspecError as error:
        raise ProbeFailed(f"unexpected answer: {error}") from None


def _says(probes: Probes) -> tuple[object, ...]:
    """What matters of the answers: not when they were taken."""
    return tuple(
        (probe.pod_uid, probe.answer, probe.problem) if probe else None
        for probe in (probes.trainer, probes.api_server, probes.inference, probes.exporter)
    )
