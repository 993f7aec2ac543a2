"""A real API server for the whole session; for each test a namespace, an operator, a fake kubelet on request."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from clotho_dev.cluster import binaries
from clotho_dev.cluster import crds as other_crds
from clotho_dev.cluster import kueue as kueue_programs
from clotho_dev.cluster.control_plane import PROGRAMS, ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from clotho_dev.cluster.kueue import Kueue
from clotho_dev.cluster.process import Processes
from rig.cluster_access import ClusterAccess
from rig.fake_kubelet import FakeKubelet
from rig.meddling_proxy import MeddlingProxy
from rig.namespaces import fresh_namespace
from rig.operator_process import FAST, OperatorProcess, has_traceback

ROOT = Path(__file__).parents[2]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and some tests send it

StartOperator = Callable[..., Awaitable[OperatorProcess]]
LONGEST = "test_tinker.py"  # six minutes the first time
WHOLE_RUNS = "loop"  # a folder of few tests that take a minute each


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then those with most tests: all workers then end at about the same time."""
    tests_in = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name != LONGEST, item.path.parent.name != WHOLE_RUNS, -tests_in[item.path]))


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


@pytest.fixture(scope="session")
def crds(kubectl: Kubectl) -> None:
    kubectl.run("apply", "--server-side", f"--filename={ROOT / 'crds'}")
    kubectl.run("wait", "--for=condition=Established", "crd", "--all")


@pytest.fixture(scope="module")
def kueue_crds(kubectl: Kubectl) -> Iterator[Kueue]:
    found = kueue_programs.find()
    other_crds.install(kubectl, [found.crds])
    yield found
    other_crds.remove(kubectl, [found.crds])


@pytest.fixture(scope="module")
def kueue(control_plane: ControlPlane, kubectl: Kubectl, kueue_crds: Kueue) -> Iterator[None]:
    """The real one, for the tests of one file."""
    processes = Processes(control_plane.folder / "logs")
    try:
        kueue_programs.start(kueue_crds, control_plane, processes)
        yield
        for kinds in (
            "workloads,localqueues",
            "clusterqueues",
            "resourceflavors",
        ):  # Kueue removes its finalizers
            kubectl.run("delete", kinds, "--all", "--all-namespaces", "--wait")
    finally:
        processes.stop()


@pytest_asyncio.fixture
async def cluster(control_plane: ControlPlane, crds: None, namespace: str) -> AsyncIterator[ClusterAccess]:
    async with ClusterAccess(control_plane.kubeconfig, namespace) as access:
        yield access


@pytest_asyncio.fixture
async def kubelet(cluster: ClusterAccess) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(cluster) as running:
        yield running


@pytest_asyncio.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[MeddlingProxy]:
    async with MeddlingProxy(control_plane.kubeconfig, tmp_path) as standing:
        yield standing


@pytest_asyncio.fixture
async def start_operator(
    control_plane: ControlPlane, cluster: ClusterAccess, tmp_path: Path
) -> AsyncIterator[StartOperator]:
    """Starts operators for the test's namespace; whatever they logged, it was no traceback, unless they had to fail."""
    started: list[OperatorProcess] = []

    async def start(*, through: MeddlingProxy | None = None, **settings: str) -> OperatorProcess:
        scope = {"CLOTHO_WATCH_NAMESPACES": cluster.namespace, "CLOTHO_LEASE_NAMESPACE": cluster.namespace}
        name = f"operator-{len(started)}"
        operator = OperatorProcess(
            through.kubeconfig if through else control_plane.kubeconfig,
            tmp_path / f"{name}.log",
            {**FAST, **scope, "CLOTHO_LEASE_IDENTITY": name, **settings},
        )
        started.append(operator)
        return await operator.start()

    yield start
    await asyncio.gather(*(operator.kill() for operator in started if operator.is_alive))
    for operator in started:
        print(operator.log())  # shown beside a test that failed
        assert operator.has_failed or not has_traceback(operator.log()), operator.log()


@pytest_asyncio.fixture
async def operator(start_operator: StartOperator) -> OperatorProcess:
    return await start_operator()
