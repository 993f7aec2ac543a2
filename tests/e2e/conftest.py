"""The node profile of the embedded cluster for the whole session: one that runs already is used and left running."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from clotho_dev.cluster.embedded import kubectl_for
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.target import Embedded
from rig.namespaces import fresh_namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real pods take real time, and the first test may find images to build."""
    for item in items:
        item.add_marker(pytest.mark.timeout(1800), append=False)


@pytest.fixture(scope="session")
def embedded() -> Iterator[Embedded]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a real node needs root on Linux")
    target = Embedded()
    was_running = target.folder.daemon() is not None
    target.up()
    yield target
    if not was_running:
        target.down()


@pytest.fixture(scope="session")
def python_image(embedded: Embedded) -> str:
    """An image with Python in it, for the pods that tests look through."""
    return embedded.provide_images(["environment"])["environment"]


@pytest.fixture(scope="session")
def kubectl(embedded: Embedded) -> Kubectl:
    return kubectl_for(embedded.folder)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    with fresh_namespace(kubectl) as name:
        yield name
