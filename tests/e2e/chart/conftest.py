"""The chart installed with Helm on a real node, as a user would, in a namespace of its own."""

from collections.abc import Iterator, Mapping

import pytest

from clotho_dev import REPOSITORY
from clotho_dev.cluster import binaries
from clotho_dev.cluster.chart import IMAGE_KEYS
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.target import Embedded
from rig.helm_release import RELEASE, ExampleRun, Helm
from rig.namespaces import fresh_namespace


@pytest.fixture(scope="module")
def release_namespace(kubectl: Kubectl) -> Iterator[str]:
    with fresh_namespace(kubectl) as name:
        yield name


@pytest.fixture(scope="module")
def values(embedded: Embedded, release_namespace: str) -> tuple[str, ...]:
    """Our own images, and this namespace alone: other operators may run in the cluster."""
    tags: Mapping[str, str] = embedded.provide_images()
    return (
        *(f"images.{IMAGE_KEYS[name]}={tag}" for name, tag in tags.items()),
        "images.pullPolicy=Never",
        f"runs.namespaces={{{release_namespace}}}",
        "settings.probe.intervalSeconds=1",
        "settings.reconcile.progressSeconds=1",
    )


@pytest.fixture(scope="module")
def helm(kubectl: Kubectl, release_namespace: str) -> Iterator[Helm]:
    helm = Helm(binaries.find(["helm"])["helm"], kubectl, release_namespace)
    yield helm
    helm.run("uninstall", RELEASE, "--wait", "--ignore-not-found")
    kubectl.run("delete", "--ignore-not-found", f"--filename={REPOSITORY / 'crds'}")  # the chart keeps them


@pytest.fixture(scope="module")
def run(kubectl: Kubectl, release_namespace: str) -> Iterator[ExampleRun]:
    run = ExampleRun(kubectl.in_namespace(release_namespace), binaries.find(["kstatus"])["kstatus"])
    yield run
    run.delete()
