"""What an inference replica reports on `/metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class ReplicaMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.version = self._gauge("policy_version", "Optimiser steps in the policy that is served.")
        self.behind = self._gauge("policy_steps_behind", "Steps between that policy and the trainer's newest.")
        self.sequences = self._gauge("sequences", "Samples that are asked for and not complete.")
        self.sampled_tokens = Counter(
            "clotho_inference_sampled_tokens", "Tokens sampled for environments.", registry=self.registry
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"clotho_inference_{name}", text, registry=self.registry)
