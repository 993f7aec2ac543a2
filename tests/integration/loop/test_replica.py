"""A replica that serves the policy beside its trainer: every process as it is in its pod."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from integration.loop.processes import TOKEN, Ports, Run, letters_config, tiny_model, until

pytestmark = pytest.mark.timeout(900)  # four interpreters import torch and friends: slow on a busy machine


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    ports = Ports()
    config = letters_config(tiny_model(tmp_path / "tiny"), ports, steps=100_000)
    run = Run(config, ports, tmp_path, extra_environment={"CLOTHO_INFERENCE_TOKEN": TOKEN})
    try:
        yield run
    finally:
        run.close()


def add_replica(run: Run) -> None:
    """As the operator does it: the config that all pods mount names the replica from now on."""
    urls = (f"http://127.0.0.1:{run.ports.replica}",)
    run.config = structs.replace(run.config, endpoints=structs.replace(run.config.endpoints, inference_replicas=urls))
    run.start("replica")


def get(run: Run, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{run.ports.replica_status}{path}", timeout=30) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, ConnectionError):
        return ""


def metric(run: Run, name: str) -> float:
    families = text_string_to_metric_families(get(run, "/metrics"))
    return next((each.value for family in families for each in family.samples if each.name == name), 0.0)


def sampled(run: Run) -> float:
    return metric(run, "clotho_inference_sampled_tokens_total")


def version(run: Run) -> float:
    return metric(run, "clotho_inference_policy_version")


def step(run: Run) -> int:
    return int(run.progress().get("step", 0))


def test_a_replica_that_is_added_serves_the_newest_policy_and_can_be_lost(run: Run) -> None:
    for name in ("api-server", "trainer", "environment"):
        run.start(name)  # type: ignore[arg-type]
    until(lambda: step(run) >= 1, run, "a step without a replica")

    add_replica(run)
    until(lambda: get(run, "/readyz") == "ok\n", run, "a replica that is ready")
    until(lambda: sampled(run) > 0, run, "samples from the replica, in an environment that was running before")
    seen = version(run)
    until(lambda: version(run) > seen + 1, run, "two newer versions")

    run.kill("replica")
    del run.processes["replica"]
    lost_at = step(run)
    until(lambda: step(run) > lost_at + 1, run, "steps without the replica")
    run.start("replica")
    until(lambda: sampled(run) > 0 and version(run) > lost_at, run, "samples from the replica again")
