"""Metrics for Prometheus. Environments are labelled by the name they asked for, up to a bound."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from clotho_api_server.state.batching import EnvId
from clotho_api_server.state.disk import Disk
from clotho_api_server.state.shares import Snapshot

MOST_NAMES: Final = 100  # names are untrusted; more of them share one label
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_WAITS: Final = (0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800)


class Metrics:
    def __init__(self, state: Callable[[], Snapshot], max_queue_bytes: int, disk: Disk) -> None:
        self.registry = CollectorRegistry()
        self._state = state
        self._names: set[str] = set()

        def gauge(name: str, text: str, value: Callable[[Snapshot], float]) -> None:
            Gauge(f"clotho_api_{name}", text, registry=self.registry).set_function(lambda: value(state()))

        gauge("queue_groups", "Groups that wait for the trainer.", lambda s: s.queue_groups)
        gauge("queue_bytes", "Size on disk of the groups that wait.", lambda s: s.queue_bytes)
        gauge("queue_limit_bytes", "The size at which groups are refused.", lambda _: max_queue_bytes)
        gauge("disk_free_bytes", "Free space of the data volume.", lambda _: disk.free_bytes)
        gauge("disk_full", "1 while groups are refused because the volume is full.", lambda _: disk.problem is not None)
        gauge("queue_sequences", "Sequences of the groups that wait.", lambda s: s.sequences)
        gauge("retained_bytes", "Trained groups kept until a checkpoint holds them.", lambda s: s.retained_bytes)
        gauge("current_step", "Optimiser steps that the trainer has acknowledged.", lambda s: s.step)
        gauge("leased_batches", "Batches leased to the trainer.", lambda s: s.leased_batches)
        gauge(
            "environments",
            "Environments that are connected.",
            lambda s: sum(env.connected for env in s.environments.values()),
        )
        self._received = self._counter("groups_received", "Groups written to disk.", "environment")
        self._rejected = self._counter("groups_rejected", "Groups refused.", "environment", "reason")
        self._dropped = self._counter("groups_dropped", "Groups accepted or offered, but too old.", "environment")
        self._trained = self._counter("groups_trained", "Groups in acknowledged batches.", "environment")
        self.lease_expiries = self._counter("lease_expiries", "Leases that ran out and were delivered again.")
        self.batch_wait = self._histogram("batch_wait_seconds", "From asking for a batch to getting one.", _WAITS)
        self.disk_write = self._histogram("disk_write_seconds", "One commit, flushed.", _SECONDS)
        self.staleness = self._histogram(
            "staleness_steps", "Steps between a group's policy and the batch.", (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
        )

    def received(self, env_id: EnvId, count: int = 1) -> None:
        self._received.labels(self._label(env_id)).inc(count)

    def rejected(self, env_id: EnvId, reason: str, count: int = 1) -> None:
        self._rejected.labels(self._label(env_id), reason).inc(count)

    def dropped(self, groups: Mapping[EnvId, int]) -> None:
        for env_id, count in groups.items():
            self._dropped.labels(self._label(env_id)).inc(count)

    def trained(self, groups: Mapping[EnvId, int]) -> None:
        for env_id, count in groups.items():
            self._trained.labels(self._label(env_id)).inc(count)

    def _label(self, env_id: EnvId) -> str:
        env = self._state().environments.get(env_id) if env_id is not None else None
        if env is None:
            return "unknown"
        name = env.asked.desired_name
        if len(self._names) < MOST_NAMES:
            self._names.add(name)
        return name if name in self._names else "other"

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"clotho_api_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"clotho_api_{name}", text, buckets=tuple(buckets), registry=self.registry)
