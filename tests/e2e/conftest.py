"""A real node for the whole session: this clone's own cluster, beside that of `make demo` and those of other clones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from clotho_dev import REPOSITORY
from clotho_dev.cluster import images
from clotho_dev.cluster.embedded import kubectl_for
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.locks import exclusive
from clotho_dev.cluster.state import Folder, name_for_tests
from clotho_dev.cluster.target import Embedded
from rig.namespaces import fresh_namespace

IN_USE = "another test session of this clone uses its cluster; wait for its end, or run the tests from another clone"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real pods take real time, and the first test may find images to build."""
    for item in items:
        item.add_marker(pytest.mark.timeout(1800), append=False)


@pytest.fixture(scope="session")
def embedded(pytestconfig: pytest.Config) -> Iterator[Embedded]:
    """Fresh for every session: what a killed one left is removed first, and this one ends with the session."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a real node needs root on Linux")
    target = Embedded(Folder(name_for_tests(REPOSITORY)), bound=True)
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with exclusive(target.folder.lock, IN_USE):
            with capture.global_and_fixture_disabled():  # building images takes minutes: show the progress
                target.down()
                target.up()
                target.provide_images(images.NAMES)
            yield target
            target.down()
    except ClusterError as error:
        pytest.exit(f"no cluster for the tests: {error}", returncode=1)


@pytest.fixture(scope="session")
def python_image(embedded: Embedded) -> str:
    """An image with Python in it, for the pods in which tests run their checks."""
    return embedded.provide_images(["environment"])["environment"]


@pytest.fixture(scope="session")
def kubectl(embedded: Embedded) -> Kubectl:
    return kubectl_for(embedded.folder)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    with fresh_namespace(kubectl) as name:
        yield name
