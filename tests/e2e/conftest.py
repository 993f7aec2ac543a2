"""A real node for each worker: this clone's own clusters, beside that of `make demo` and those of other clones."""

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
from clotho_dev.cluster.locks import exclusive, only_one
from clotho_dev.cluster.state import Folder, name_for_tests
from clotho_dev.cluster.target import Embedded
from rig.namespaces import fresh_namespace

IN_USE = "another test session of this clone uses its cluster; wait for its end, or run the tests from another clone"
FOLDERS = ("chart", "product", "cluster")  # tests of the chart end with its CRDs, which those of the product need
LONGEST_FIRST = ("test_releases.py", "test_survival.py", "test_ranks.py", "test_catalogue.py", "test_life.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real pods take real time, and the first test may find images to build. Two workers end at about the same time."""
    for item in items:
        item.add_marker(pytest.mark.timeout(1800), append=False)
    items.sort(key=lambda item: (_place(item.path.parent.name, FOLDERS), _place(item.path.name, LONGEST_FIRST)))


def _place(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)


@pytest.fixture(scope="session")
def embedded(pytestconfig: pytest.Config, worker_id: str) -> Iterator[Embedded]:
    """Fresh for every session: what a killed one left is removed first, and this one ends with the session."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a real node needs root on Linux")
    ours = name_for_tests(REPOSITORY)
    target = Embedded(Folder(ours if worker_id in {"master", "gw0"} else f"{ours}-{worker_id}"), bound=True)
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    one_at_a_time = only_one(Folder(ours).path.with_name(f"{ours}.prepare.lock"), "preparing a cluster of these tests")
    try:
        with exclusive(target.folder.lock, IN_USE):
            # Building images takes minutes: show the progress. The second worker then shares those of the first.
            with capture.global_and_fixture_disabled(), one_at_a_time:
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
