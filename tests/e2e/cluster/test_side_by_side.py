"""Two nodes on one machine, as `make demo` and `make test` start them: neither touches the other."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from clotho_dev.cluster import images
from clotho_dev.cluster.embedded import kubectl_for
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.node import ctr
from clotho_dev.cluster.state import DEFAULT_NAME, Folder
from clotho_dev.cluster.target import Embedded
from rig.namespaces import fresh_namespace
from rig.pods import Pods

WAIT = "import time; time.sleep(600)"


@pytest.fixture
def neighbour(embedded: Embedded) -> Iterator[Embedded]:
    """Another cluster of this machine, without a store of its own until it starts."""
    target = Embedded(Folder(f"{embedded.folder.name}-n"), bound=True)
    yield target
    target.down()
    shutil.rmtree(target.folder.containerd_root, ignore_errors=True)


def test_tests_never_use_the_cluster_of_the_demo(embedded: Embedded) -> None:
    assert embedded.folder.name != DEFAULT_NAME


def test_second_node_shares_images_and_leaves_the_first_alone(
    embedded: Embedded, neighbour: Embedded, kubectl: Kubectl, namespace: str, python_image: str
) -> None:
    ours = Pods(kubectl.in_namespace(namespace), python_image)
    ours.start("before", WAIT)
    neighbour.up()
    started = time.monotonic()
    tags = neighbour.provide_images(images.NAMES)
    print(f"the neighbour had its images after {time.monotonic() - started:.1f} s")
    assert shared_files(embedded, neighbour) > 0
    with fresh_namespace(kubectl_for(neighbour.folder)) as name:
        theirs = Pods(kubectl_for(neighbour.folder).in_namespace(name), tags["environment"])
        assert theirs.run("hello", "print(6 * 7)") == "42"
        assert ours.execute("before", "print('still here')") == "still here"
    neighbour.down()
    assert ours.execute("before", "print('still here')") == "still here"
    assert ours.run("after", "import clotho_environment; print('complete')") == "complete"
    assert set(ctr(embedded.folder, "images", "list", "--quiet").split()) >= set(tags.values())


def shared_files(one: Embedded, other: Embedded) -> int:
    """How many programs of images are one file on disk."""
    programs = "io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/usr/bin/*"
    inodes = [{path.lstat().st_ino for path in each.folder.containerd_root.glob(programs)} for each in (one, other)]
    return len(inodes[0] & inodes[1])
