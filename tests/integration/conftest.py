"""A real API server for the whole session, and a namespace of its own for each test that asks for one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from cluster import binaries
from cluster.control_plane import PROGRAMS, ControlPlane
from cluster.kubectl import Kubectl, KubectlError


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), binaries.find(PROGRAMS), audit_log=True) as running:
        yield running


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return Kubectl(control_plane.programs["kubectl"], control_plane.kubeconfig)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """Empty, enforcing `restricted` Pod Security, with its default service account in place."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    deadline = time.monotonic() + 30
    while not _exists(kubectl.in_namespace(name), "serviceaccount/default"):
        assert time.monotonic() < deadline, "the controller manager made no default service account"
        time.sleep(0.05)
    yield name
    kubectl.run("delete", "namespace", name, "--wait=false")


def _exists(kubectl: Kubectl, name: str) -> bool:
    try:
        kubectl.get(name)
    except KubectlError:
        return False
    return True
