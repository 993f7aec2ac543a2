"""The product as a user installs it: chart, images, and the operator running as its own ServiceAccount."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clotho_dev.cluster import chart, images
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.node import POD_RANGE
from clotho_dev.cluster.target import Embedded
from e2e.product.command_line import Clotho
from e2e.product.runs import Runs
from rig.namespaces import fresh_namespace

FREQUENT = {"reconcile": {"progressSeconds": 1}, "probe": {"intervalSeconds": 1, "startupSeconds": 1}}


@pytest.fixture(scope="session")
def installed(embedded: Embedded) -> None:
    opened = {"privateNetworks": [POD_RANGE]}
    chart.install(embedded.folder.kubeconfig, embedded.provide_images(images.NAMES), FREQUENT, opened)


@pytest.fixture
def runs(installed: None, kubectl: Kubectl, namespace: str) -> Runs:
    return Runs(kubectl.in_namespace(namespace))


@pytest.fixture
def clotho(runs: Runs) -> Clotho:
    return Clotho(runs)


@pytest.fixture
def elsewhere(installed: None, kubectl: Kubectl) -> Iterator[Runs]:
    """A second namespace, for what must not meet."""
    with fresh_namespace(kubectl) as name:
        yield Runs(kubectl.in_namespace(name))
