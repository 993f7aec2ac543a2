"""The chart on a real API server, and the operator as its ServiceAccount with the variables that the chart gives it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from clotho_dev.chart import install
from clotho_dev.chart.generate import CHART
from clotho_dev.cluster import binaries
from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from rig.cluster_access import ClusterAccess
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import FAST, OperatorProcess, has_traceback

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
CLUSTER_WIDE = (
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)


@pytest.fixture(scope="session")
def helm() -> Path:
    return binaries.find(["helm"])["helm"]


@pytest.fixture(scope="session")
def render(helm: Path) -> Render:
    """Values as `key=value` words, as after `--set`."""

    def render(*values: str, namespace: str = "clotho-system") -> list[Manifest]:
        return install.template(helm, CHART, *(f"--set={value}" for value in values), namespace=namespace)

    return render


@dataclass(frozen=True)
class Installed:
    """The chart in one namespace; its cluster-wide objects are called like the namespace."""

    kubectl: Kubectl
    namespace: str
    objects: list[Manifest]

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.namespace}"

    def rules(self) -> Iterator[Manifest]:
        """The operator's: of the roles that are bound to it."""
        bound = {item["roleRef"]["name"] for item in self.objects if item["kind"].endswith("RoleBinding")}
        for item in self.objects:
            if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] in bound:
                yield from item["rules"]

    def variables(self) -> dict[str, str]:
        deployment = next(item for item in self.objects if item["kind"] == "Deployment")
        return {v["name"]: v["value"] for v in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}

    def write_kubeconfig(self, path: Path) -> Path:
        """The ServiceAccount's: a token instead of the administrator's certificate."""
        document = yaml.safe_load(self.kubectl.kubeconfig.read_text())
        token = self.kubectl.in_namespace(self.namespace).run("create", "token", self.namespace).strip()
        document["users"][0]["user"] = {"token": token}
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
        return path


InstallChart = Callable[..., Installed]


@pytest.fixture
def install_chart(kubectl: Kubectl, namespace: str, render: Render) -> Iterator[InstallChart]:
    done: list[Installed] = []

    def install(*values: str) -> Installed:
        objects = render(f"fullnameOverride={namespace}", "replicas=0", *values, namespace=namespace)
        kubectl.run(
            "apply", "--server-side", "--force-conflicts", "--filename=-", stdin=yaml.safe_dump_all(objects), timeout=60
        )
        kubectl.run("wait", "--for=condition=Established", "crd/trainingruns.clotho.dev")
        done.append(Installed(kubectl, namespace, objects))
        return done[-1]

    yield install
    for installed in done:
        cluster_wide = [o for o in installed.objects if o["kind"] in CLUSTER_WIDE]
        kubectl.run("delete", "--ignore-not-found", "--filename=-", stdin=yaml.safe_dump_all(cluster_wide))


@pytest_asyncio.fixture
async def cluster(control_plane: ControlPlane, namespace: str) -> AsyncIterator[ClusterAccess]:
    async with ClusterAccess(control_plane.kubeconfig, namespace) as access:
        yield access


@pytest_asyncio.fixture
async def kubelet(cluster: ClusterAccess) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(cluster) as running:
        yield running


StartOperator = Callable[[Installed], Awaitable[OperatorProcess]]


@pytest_asyncio.fixture
async def start_operator(tmp_path: Path) -> AsyncIterator[StartOperator]:
    """With the variables of the chart's Deployment, only faster; under the rights of its ServiceAccount."""
    started: list[OperatorProcess] = []

    async def start(installed: Installed) -> OperatorProcess:
        kubeconfig = installed.write_kubeconfig(tmp_path / "service-account.kubeconfig")
        settings = {**installed.variables(), **FAST, "CLOTHO_LEASE_NAMESPACE": installed.namespace}
        started.append(OperatorProcess(kubeconfig, tmp_path / "operator.log", settings))
        return await started[-1].start()

    yield start
    await asyncio.gather(*(operator.kill() for operator in started if operator.is_alive))
    for operator in started:
        assert not has_traceback(operator.log()), operator.log()
