"""Images pushed to a real registry, and the chart installed from it by digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster import embedded as embedded_cluster
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.process import Processes
from clotho_dev.cluster.registry import Registry
from clotho_dev.cluster.target import Embedded
from clotho_dev.release import builders, destination, push
from e2e.product.runs import Runs, letters
from rig.helm_release import CHART, RELEASE, Helm

PUSHED = ("operator", "api-server", "environment")  # the trainer's seven gigabytes would take minutes


@pytest.fixture(scope="module")
def registry(embedded: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One storage at one address: on this machine's loopback for pushes, and on the node's for pulls."""
    processes = Processes(tmp_path_factory.mktemp("registry-logs"))
    registry = Registry.at_free_port(tmp_path_factory.mktemp("registry"))
    try:
        registry.start(processes)
        registry.start(processes, inside=embedded_cluster.process_inside(embedded.folder))
        yield registry
    finally:
        processes.stop()


@pytest.fixture(scope="module")
def pushed(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    """The references by digest, and the chart's values that `make push` writes."""
    to = destination.parse(f"{registry.host}/clotho")
    dist = tmp_path_factory.mktemp("dist")
    digests = push.push(to, "e2e", builders.Buildah(), PUSHED, dist)
    values = dist / "images.yaml"
    values.write_text(push.chart_values(to, digests))
    assert {path.name for path in dist.glob("*.cdx.json")} == {f"{name}.cdx.json" for name in PUSHED}
    return push.by_digest(to, digests), values


@pytest.fixture(scope="module")
def runs(
    helm: Helm, embedded: Embedded, pushed: tuple[dict[str, str], Path], release_namespace: str, kubectl: Kubectl
) -> Runs:
    helm.run(
        "upgrade",
        RELEASE,
        str(CHART),
        "--install",
        "--wait",
        "--timeout=180s",
        "--take-ownership",
        f"--values={pushed[1]}",
        f"--set=images.trainer={embedded.provide_images(['trainer'])['trainer']}",
        f"--set=runs.namespaces={{{release_namespace}}}",
    )
    return Runs(kubectl.in_namespace(release_namespace))


def test_run_completes_with_images_pulled_by_digest(runs: Runs, pushed: tuple[dict[str, str], Path]) -> None:
    references, _ = pushed
    operator = runs.kubectl.get("pods", "--selector=app.kubernetes.io/component=operator")["items"][0]
    assert operator["spec"]["containers"][0]["image"] == references["operator"]
    runs.kubectl.apply(letters("pulled", steps=3))
    done = runs.wait_for_phase("pulled", "Completed", "Failed")
    components = done["status"]["components"]
    assert done["status"]["phase"] == "Completed"
    assert components["apiServer"]["image"] == references["api-server"]
    assert components["environments"][0]["image"] == references["environment"]


def test_digest_that_the_registry_lacks_is_named_in_the_status(runs: Runs, registry: Registry) -> None:
    gone = f"{registry.host}/clotho/environment@sha256:{'0' * 64}"
    run = letters("gone", steps=3)
    run["spec"]["environments"][0]["image"] = gone
    runs.kubectl.apply(run)
    waiting = runs.wait("gone", "waiting for its image", lambda body: gone in body.get("status", {}).get("message", ""))
    assert "cannot be pulled" in waiting["status"]["message"]
    assert "not found" in waiting["status"]["message"]
    runs.kubectl.run("delete", "trainingrun/gone")
