"""What Flux, Helm and Argo CD make of a run at every phase of its life; and no two managers own one field."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho_dev.cluster import binaries
from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from rig.argocd import health
from rig.cluster_access import Body, ClusterAccess, component, condition, eventually, run_manifest
from rig.fake_kubelet import FakeKubelet

FINISHED = {"state": "finished", "step": 100, "totalSteps": 100, "checkpoint": {"step": 100, "path": "/ckpt/100"}}
NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


@pytest.fixture(scope="session")
def kstatus() -> Path:
    return binaries.find(["kstatus"])["kstatus"]


class Judges:
    """The real kstatus library, and our scripts for Argo CD."""

    def __init__(self, kstatus: Path) -> None:
        self._kstatus = kstatus

    def __call__(self, item: Body) -> tuple[str, str]:
        done = subprocess.run([self._kstatus], input=json.dumps(item), capture_output=True, text=True, check=True)
        script = "trainingrun-health.lua" if item["kind"] == "TrainingRun" else "catalogue-health.lua"
        return done.stdout.split("\t")[0], health(item, script)[0]


@pytest.fixture
def judge(kstatus: Path) -> Judges:
    return Judges(kstatus)


@pytest.fixture
async def operator(install_chart: Any, start_operator: Any, cluster: ClusterAccess) -> None:
    await start_operator(install_chart(f"runs.namespaces={{{cluster.namespace}}}"))


async def test_a_run_without_an_operator_is_in_progress(
    install_chart: Any, cluster: ClusterAccess, judge: Judges
) -> None:
    """Before any operator has seen it, a run must not look finished."""
    install_chart()
    assert judge(await cluster.create_run("r")) == ("InProgress", "Progressing")


async def test_run_is_in_progress_until_its_pods_are_ready(
    operator: None, cluster: ClusterAccess, kubelet: FakeKubelet, judge: Judges
) -> None:
    kubelet.makes_ready = False
    await cluster.create_run("r")
    run = await cluster.until("seen", lambda run: run["status"].get("observedGeneration") == 1, "r")
    assert judge(run) == ("InProgress", "Progressing")
    kubelet.makes_ready = True
    assert judge(await cluster.until_phase("Running", "r")) == ("Current", "Healthy")
    kubelet.progress = FINISHED
    assert judge(await cluster.until_phase("Completed", "r")) == ("Current", "Healthy")


async def test_stopping_run_is_in_progress_until_it_has_stopped(
    operator: None, cluster: ClusterAccess, kubelet: FakeKubelet, judge: Judges
) -> None:
    may_end = asyncio.Event()
    kubelet.may_finish = lambda pod: component(pod) != "trainer" or may_end.is_set()
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    await cluster.change_run("r", stop=True)
    assert judge(await cluster.until_phase("Stopping", "r")) == ("InProgress", "Progressing")
    may_end.set()
    assert judge(await cluster.until_phase("Stopped", "r")) == ("Current", "Suspended")


async def test_suspended_run_is_suspended_until_it_is_resumed(
    operator: None, cluster: ClusterAccess, kubelet: FakeKubelet, judge: Judges
) -> None:
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    await cluster.change_run("r", suspend=True)
    assert judge(await cluster.until_phase("Suspended", "r")) == ("Current", "Suspended")
    await cluster.change_run("r", suspend=False)
    assert judge(await cluster.until_phase("Running", "r")) == ("Current", "Healthy")


async def test_a_stalled_run_is_degraded(
    operator: None, cluster: ClusterAccess, kubelet: FakeKubelet, judge: Judges
) -> None:
    await cluster.create_run("r", stall={"afterSeconds": 1})
    run = await cluster.until("stalled", lambda run: "stall" in run["status"], "r")
    assert judge(run) == ("Failed", "Degraded")


async def test_a_failed_run_is_degraded(
    operator: None, cluster: ClusterAccess, kubelet: FakeKubelet, judge: Judges
) -> None:
    await cluster.create_run("r", restarts={"limit": 0})
    await cluster.until_phase("Running", "r")
    await kubelet.fail(next(pod for pod in await cluster.pods("r") if component(pod) == "trainer"))
    assert judge(await cluster.until_phase("Failed", "r")) == ("Failed", "Degraded")


async def test_a_deleted_run_is_terminating(
    operator: None, cluster: ClusterAccess, kubelet: FakeKubelet, judge: Judges
) -> None:
    await cluster.create_run("r")
    await cluster.patch("trainingruns", "r", {"metadata": {"finalizers": ["example.com/hold"]}})
    await cluster.delete("trainingruns", "r")
    run = await cluster.until("terminating", lambda run: "deletionTimestamp" in run["metadata"], "r")
    assert judge(run)[0] == "Terminating"
    await cluster.patch("trainingruns", "r", {"metadata": {"finalizers": None}})


async def test_no_field_has_two_owners(
    operator: None, control_plane: ControlPlane, kubectl: Kubectl, cluster: ClusterAccess, kubelet: FakeKubelet
) -> None:
    """A server-side diff is empty once the operator has done its work, and the spec stays the tool's."""
    manifest = yaml.safe_dump(run_manifest("r", storage={"retain": False}))
    tool = kubectl.in_namespace(cluster.namespace)
    tool.run("apply", "--server-side", "--field-manager=gitops", "--filename=-", stdin=manifest)
    run = await cluster.until_phase("Running", "r")
    assert diff(tool, manifest) == ""
    by_operator = [entry for entry in run["metadata"]["managedFields"] if entry["manager"] != "gitops"]
    assert by_operator
    for entry in by_operator:
        assert entry["subresource"] == "status"
        assert entry["fieldsV1"].keys() == {"f:status"}


def diff(kubectl: Kubectl, manifest: str) -> str:
    argv = [kubectl.program, f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}", "diff"]
    done = subprocess.run(
        [*argv, "--server-side", "--field-manager=gitops", "--filename=-"],
        input=manifest, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


async def test_health_of_environments_and_inference_tests(
    operator: None, cluster: ClusterAccess, kubelet: FakeKubelet, judge: Judges
) -> None:
    """An Environment on its way and described, a test that cannot work."""
    kubelet.makes_ready = False
    await create(cluster, "environments", "Environment")
    seen = await found(cluster, "environments", lambda item: item["status"].get("observedGeneration") == 1)
    assert judge(seen) == ("InProgress", "Progressing")
    kubelet.makes_ready = True
    ready = await found(cluster, "environments", lambda item: condition(item, "Ready").get("status") == "True")
    assert judge(ready) == ("Current", "Healthy")
    await create(cluster, "inferencetests", "InferenceTest", environmentName="e", config={"unknown": 1})
    failed = await found(cluster, "inferencetests", lambda item: item["status"]["phase"] == "Failed")
    assert judge(failed) == ("Failed", "Degraded")


async def create(cluster: ClusterAccess, plural: str, kind: str, **spec: Any) -> None:
    body = {"apiVersion": "clotho.dev/v1alpha1", "kind": kind, "metadata": {"name": "e"}, "spec": spec}
    await cluster.client.create(cluster.folder(plural), body, Body)


async def found(cluster: ClusterAccess, plural: str, is_so: Callable[[Body], bool]) -> Body:
    async def look() -> tuple[bool, Body]:
        body = await cluster.get(plural, "e")
        return is_so(body), body

    return await eventually(plural, look)
