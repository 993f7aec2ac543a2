"""A real API server for the whole session, and a namespace of its own for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import binaries
from cluster.control_plane import PROGRAMS, ControlPlane
from cluster.kubectl import Kubectl
from namespaces import fresh_namespace


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), binaries.find(PROGRAMS), audit_log=True) as running:
        yield running


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return Kubectl(control_plane.programs["kubectl"], control_plane.kubeconfig)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    with fresh_namespace(kubectl) as name:
        yield name
