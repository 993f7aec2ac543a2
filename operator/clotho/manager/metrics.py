"""What the operator exports to Prometheus. Figures of runs are gathered at scrape time, so they vanish with the run."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from clotho.api.metadata import Metadata
from clotho.api.phases import PHASES, RESTING_PHASES
from clotho.api.status import ComponentStatus, TrainingRunStatus
from clotho.api.training_run import TrainingRun, UnreadableRun
from clotho.plan.run.progress import reported_step_time
from clotho_contract.progress import Progress

RUN_LABELS = ("namespace", "run")
STARTUP_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
RECONCILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

_RUN_GAUGES = {
    "clotho_run_step": "Optimiser steps that the run has made.",
    "clotho_run_total_steps": "Optimiser steps that the run was asked to make.",
    "clotho_run_reward_mean": "Mean reward of the run's last batch.",
    "clotho_run_loss": "Loss of the run's last step.",
    "clotho_run_tokens_per_second": "Tokens that the run trains a second; absent when it has ended or is suspended.",
    "clotho_run_waiting_share": "Share of the run's last step that the trainer waited for data, 0 to 1.",
    "clotho_run_engine_occupancy": "Share of the inference engine's rows in use while the trainer waited, 0 to 1.",
    "clotho_run_seconds_since_last_step": (
        "Seconds since the run made a step; grows while it is stalled, absent when it has ended or is suspended."
    ),
    "clotho_run_restarts": "Pods of the run that were replaced after they ended.",
    "clotho_run_stalled": "1 while the run is stalled: no step for its spec.stall.afterSeconds, else 0.",
    "clotho_run_queued": "1 while the run is queued by a TrainingPolicy or by Kueue, else 0.",
}


class RunCollector(Collector):
    """Figures of runs: from the trainer's last answer where there is one, else from status.

    A replica that does not lead does not probe, and reports none.
    """

    def __init__(
        self,
        runs: Callable[[], Iterable[TrainingRun | UnreadableRun]],
        last_answer: Callable[[Metadata], Progress | None],
        is_leader: Callable[[], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._runs, self._last_answer, self._is_leader, self._now = runs, last_answer, is_leader, now

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("clotho_runs", "Runs by phase.", labels=("phase",))
        for name, text in _RUN_GAUGES.items():
            yield GaugeMetricFamily(name, text, labels=RUN_LABELS)
        yield GaugeMetricFamily(
            "clotho_run_component_ready",
            "Share of a component's pods that are ready, 0 to 1; component is api-server, trainer or an environment.",
            labels=(*RUN_LABELS, "component"),
        )
        yield GaugeMetricFamily(
            "clotho_run_phase", "Always 1; the label is the phase that the run is in.", labels=(*RUN_LABELS, "phase")
        )
        yield GaugeMetricFamily(
            "clotho_run_component_replicas",
            "Pods wanted of a component; of an environment with autoscaling, the number that was chosen.",
            labels=(*RUN_LABELS, "component"),
        )
        yield GaugeMetricFamily(
            "clotho_run_evaluation",
            "Newest value of a figure that an environment of the run evaluates; at most 16 of a run.",
            labels=(*RUN_LABELS, "environment", "figure"),
        )

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {metric.name: metric for metric in self.describe()}
        counts = dict.fromkeys(PHASES, 0)
        now = self._now()
        for run in tuple(self._runs()) if self._is_leader() else ():
            counts[run.status.phase] += 1
            labels = {"namespace": run.metadata.namespace, "run": run.metadata.name}
            families["clotho_run_phase"].add_sample("clotho_run_phase", {**labels, "phase": run.status.phase}, 1)
            for name, value in _figures(run.status, self._last_answer(run.metadata), now).items():
                families[name].add_sample(name, labels, value)
            for part in _parts(run.status):
                share = part.ready / part.replicas if part.replicas else 1.0
                for name, value in (("ready", share), ("replicas", part.replicas)):
                    family = f"clotho_run_component_{name}"
                    families[family].add_sample(family, {**labels, "component": part.name}, value)
            for each in run.status.evaluations:
                measured = {**labels, "environment": each.environment, "figure": each.figure}
                families["clotho_run_evaluation"].add_sample("clotho_run_evaluation", measured, each.value)
        for phase, count in counts.items():
            families["clotho_runs"].add_sample("clotho_runs", {"phase": phase}, count)
        yield from families.values()


def _figures(status: TrainingRunStatus, answer: Progress | None, now: datetime) -> dict[str, float]:
    counts: dict[str, float] = {
        "clotho_run_restarts": status.restarts,
        "clotho_run_stalled": status.stall is not None,
        "clotho_run_queued": status.is_queued,
    }
    progress = answer or status.progress
    if progress is None:
        return counts
    reported = reported_step_time(progress) if isinstance(progress, Progress) else progress.last_step_time
    moved = reported or status.running_time
    values: dict[str, float | None] = {
        "clotho_run_step": progress.step,
        "clotho_run_total_steps": progress.total_steps,
        "clotho_run_reward_mean": progress.reward_mean,
        "clotho_run_loss": progress.loss,
        "clotho_run_tokens_per_second": progress.tokens_per_second,
        "clotho_run_seconds_since_last_step": (now - moved).total_seconds() if moved else None,
    }
    if answer is not None and status.phase not in RESTING_PHASES:
        values["clotho_run_waiting_share"] = answer.waiting_share
        values["clotho_run_engine_occupancy"] = answer.occupancy
    if status.phase in RESTING_PHASES:
        del values["clotho_run_tokens_per_second"], values["clotho_run_seconds_since_last_step"]
    return counts | {name: value for name, value in values.items() if value is not None}


def _parts(status: TrainingRunStatus) -> Iterator[ComponentStatus]:
    if status.components is not None:
        yield from status.components.of_the_training


class Metrics:
    """The operator's own behaviour."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.restarts = Counter(
            "clotho_restarts", "Pods replaced after they ended, by why they ended.", ("reason",), registry=registry
        )
        self.stalls = Counter(
            "clotho_stalls", "Stalls found (pods alive, no step made), by cause.", ("cause",), registry=registry
        )
        self.startup = Histogram(
            "clotho_startup_seconds",
            "Seconds from the creation of a run until all of it was first ready.",
            buckets=STARTUP_BUCKETS,
            registry=registry,
        )
        self.reconcile = Histogram(
            "clotho_reconcile_seconds",
            "Seconds that one reconcile took, writes included.",
            buckets=RECONCILE_BUCKETS,
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "clotho_reconcile_errors",
            "Reconciles that failed and are retried, by error: Conflict, Transient, TooManyRequests, Forbidden, ...",
            ("error",),
            registry=registry,
        )
        self.queue_depth = Gauge("clotho_queue_depth", "Runs that wait to be reconciled.", registry=registry)
        self.queue_age = Gauge(
            "clotho_queue_oldest_age_seconds", "Seconds that the longest-waiting run has waited.", registry=registry
        )
        self.api_requests = Counter(
            "clotho_api_requests",
            "Requests to the Kubernetes API by verb and HTTP code; code is error when no answer came.",
            ("verb", "code"),
            registry=registry,
        )
        self.watch_idle = Gauge(
            "clotho_watch_idle_seconds",
            "Seconds since a watch last delivered an event; rises for ever when a watch is stuck.",
            ("kind",),
            registry=registry,
        )
        self.probe_failures = Counter(
            "clotho_probe_failures",
            "Probes of pods without a usable answer, by target: trainer, api_server, inference, exporter, environment.",
            ("target",),
            registry=registry,
        )
        self.notifications = Counter(
            "clotho_notifications", "Notifications by outcome: sent or failed.", ("outcome",), registry=registry
        )
        self.undecodable = Counter(
            "clotho_undecodable_objects",
            "Objects that could not be decoded and were skipped, by kind; the log names them.",
            ("kind",),
            registry=registry,
        )
        self.leader = Gauge("clotho_leader", "1 on the replica that leads, 0 on the others.", registry=registry)
