"""The Prometheus metrics of an environment."""

from collections.abc import Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Outcome = Literal["sent", "skipped", "too_long", "equal_scores", "failed", "timed_out", "refused", "policy_unavailable"]
_SECONDS = (0.05, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_SCORES = (-1.0, -0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Telemetry:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "clotho_environment"
        self._rollouts = Counter(
            f"{prefix}_rollouts", "Rollouts by how they ended.", ["outcome"], registry=self.registry
        )
        self.rollout_seconds = Histogram(
            f"{prefix}_rollout_seconds", "Time a rollout takes.", buckets=_SECONDS, registry=self.registry
        )
        self.in_flight = Gauge(f"{prefix}_rollouts_in_flight", "Rollouts running now.", registry=self.registry)
        self.waiting = Gauge(
            f"{prefix}_groups_waiting",
            "Finished groups that the API server has not accepted yet.",
            registry=self.registry,
        )
        self._scores = Histogram(
            f"{prefix}_score", "Scores of the attempts sent.", buckets=_SCORES, registry=self.registry
        )
        self._tokens = Counter(f"{prefix}_tokens", "Tokens of the attempts sent.", registry=self.registry)
        self.policy_version = Gauge(
            f"{prefix}_policy_version", "Oldest policy in the group sent last.", registry=self.registry
        )
        self.step = Gauge(f"{prefix}_step", "Step of the run, from the API server.", registry=self.registry)
        self._evaluation = Gauge(
            f"{prefix}_evaluation", "Newest result of evaluate().", ["measure"], registry=self.registry
        )

    def count(self, outcome: Outcome) -> None:
        self._rollouts.labels(outcome).inc()

    def sent(self, scores: list[float], tokens: int, policy_version: int | None) -> None:
        self.count("sent")
        self._tokens.inc(tokens)
        for score in scores:
            self._scores.observe(score)
        if policy_version is not None:
            self.policy_version.set(policy_version)

    def evaluated(self, measures: Mapping[str, float]) -> None:
        for name, value in measures.items():
            self._evaluation.labels(name).set(value)
