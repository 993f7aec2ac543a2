"""The commands as processes against a real API server, with an operator and a fake kubelet behind it."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from clotho.cli.session.probe_pods import REACHED_BOTH
from clotho_dev.cluster.control_plane import ControlPlane
from clotho_dev.cluster.kubectl import Kubectl
from rig.cluster_access import Body, ClusterAccess, component, eventually, run_manifest
from rig.commands import Clotho
from rig.fake_api import described
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

FINISHED = {
    "state": "finished",
    "step": 100,
    "totalSteps": 100,
    "rewardMean": 0.9,
    "history": [{"step": step, "rewardMean": step / 100} for step in (10, 50, 100)],
    "checkpoint": {"step": 100, "path": "/var/lib/clotho/checkpoints/100"},
}


@pytest.fixture
def clotho(control_plane: ControlPlane, cluster: ClusterAccess) -> Clotho:
    return Clotho(control_plane.kubeconfig, cluster.namespace)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run_manifest("first", storage={"size": "1Gi"})))
    return str(path)


async def test_a_run_from_start_to_results(
    clotho: Clotho, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, manifest: str
) -> None:
    started = await clotho("run", "start", "-f", manifest)
    assert started.code == 0, started.err
    await cluster.until_phase("Running", "first")
    listed = await clotho("run", "list")
    assert listed.out.splitlines()[1].split()[:2] == ["first", "Running"]
    status = await clotho("run", "status", "first", "-o", "json")
    assert status.data["status"]["phase"] == "Running"  # type: ignore[index]

    kubelet.progress = FINISHED
    watched = await clotho("run", "watch", "first")
    assert watched.code == 0, watched.err
    assert "Completed: " in watched.out
    results: Any = (await clotho("run", "results", "first", "-o", "json")).data
    assert results["results"]["rewardMean"] == 0.9
    where = await clotho("run", "download", "first", "--list", "-o", "json")
    assert msgspec.json.decode(where.out)["path"] == "/var/lib/clotho/checkpoints/100"
    refused = await clotho("run", "stop", "first")
    assert refused.code == 4
    assert "is Completed and cannot be stopped" in refused.err


async def test_suspend_resume_and_stop(
    clotho: Clotho, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, manifest: str
) -> None:
    await clotho("run", "start", "-f", manifest)
    await cluster.until_phase("Running", "first")
    assert (await clotho("run", "stop", "first", "--suspend")).code == 0
    await cluster.until_phase("Suspended", "first")
    assert (await clotho("run", "resume", "first")).code == 0
    await cluster.until_phase("Running", "first")
    assert (await clotho("run", "stop", "first")).code == 0
    watched = await clotho("run", "watch", "first")
    assert watched.code == 1, "only a completed run is a success"
    assert "Stopped" in watched.out


async def test_refusals_are_one_line_with_a_code(clotho: Clotho, manifest: str) -> None:
    assert (await clotho("run", "start", "-f", manifest)).code == 0
    again = await clotho("run", "start", "-f", manifest)
    assert (again.code, again.err.count("\n")) == (4, 1)
    assert "already exists" in again.err
    missing = await clotho("run", "status", "fisrt")
    assert (missing.code, "did you mean first?" in missing.err) == (3, True)
    late = await clotho("run", "watch", "first", "--timeout", "1")
    assert late.code == 6
    wrong = await clotho("run", "list", "--context", "nowhere")
    assert wrong.code == 5
    assert "'nowhere' is not one of" in wrong.err


async def test_a_stopped_run_is_restarted_on_its_claim_and_deleted_with_it(
    clotho: Clotho, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, manifest: str
) -> None:
    kubelet.progress = {**kubelet.progress, "checkpoint": {"step": 1, "path": "/var/lib/clotho/checkpoints/1"}}
    await clotho("run", "start", "-f", manifest)
    await cluster.until_phase("Running", "first")
    early = await clotho("run", "restart", "first")
    assert (early.code, "is Running; only a Failed or Stopped run" in early.err) == (4, True)

    await clotho("run", "stop", "first")
    assert (await clotho("run", "watch", "first")).code == 1
    restarted = await clotho("run", "restart", "first")
    assert restarted.code == 0, restarted.err
    await cluster.until_phase("Running", "first-2")
    names = [each["metadata"]["name"] for each in await cluster.all("persistentvolumeclaims")]
    (claim,) = [name for name in names if name.endswith("-trainer")]
    pods = await cluster.pods("first-2")
    assert any(claim in str(pod["spec"]["volumes"]) for pod in pods), "the trainer continues on the old claim"

    compared = await clotho("run", "compare", "first", "first-2")
    assert ["storage.claimName", "-", claim] in [line.split() for line in compared.out.splitlines()]
    assert "is kept" not in (await clotho("run", "delete", "first-2")).out, "it is the first run's"
    deleted = await clotho("run", "delete", "first", "--with-claim", "-o", "json")
    assert msgspec.json.decode(deleted.out)["claimDeleted"] is True
    gone = await clotho("run", "status", "first")
    assert gone.code == 3


async def test_a_sweep_creates_plain_runs(
    clotho: Clotho, cluster: ClusterAccess, manifest: str, tmp_path: Path
) -> None:
    sweep = {"name": "lr", "base": manifest, "parameters": {"training.learningRate": [1e-5, 1e-4]}}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(sweep))
    rendered = await clotho("sweep", "-f", str(file), "--dry-run")
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(rendered.out)]
    assert names == ["lr-learningrate-1e-5", "lr-learningrate-1e-4"]
    assert await cluster.all("trainingruns") == []
    for _ in range(2):
        assert (await clotho("sweep", "-f", str(file))).code == 0, "the second time, there is nothing to create"
    results = await clotho("sweep", "results", "lr", "-o", "json")
    assert {row["run"] for row in msgspec.json.decode(results.out)} == set(names)


async def test_a_namespace_that_does_not_exist_is_named(clotho: Clotho) -> None:
    absent = await Clotho(clotho.kubeconfig, "nowhere")("run", "status", "first")
    assert (absent.code, "namespace 'nowhere' does not exist" in absent.err) == (3, True)


async def test_a_test_whose_secret_does_not_exist_ends_at_once(
    clotho: Clotho, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.description = {"name": "echo", "className": "Echo", "fields": [{"name": "group_size", "type": "integer"}]}
    environment = {"apiVersion": "clotho.dev/v1alpha1", "kind": "Environment", "metadata": {"name": "echo"}}
    await cluster.client.create(cluster.folder("environments"), {**environment, "spec": {"entry": "e.py"}}, Body)

    async def environments() -> tuple[bool, Body]:
        found = await cluster.get("environments", "echo")
        return found.get("status", {}).get("message", "").startswith("Echo has"), found

    await eventually("described", environments)
    tried = await clotho("test", "echo", "--secret", "nope", "--timeout", "3600")
    assert tried.code == 3
    assert "Secret nope (secretName): it does not exist in this namespace" in tried.err
    assert await cluster.all("inferencetests") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_test_that_is_ended_by_a_signal_leaves_nothing_behind(
    clotho: Clotho, cluster: ClusterAccess, number: signal.Signals, code: int
) -> None:
    """No operator runs here: the environment is described by hand, and the test would wait for ever."""
    environment = {"apiVersion": "clotho.dev/v1alpha1", "kind": "Environment", "metadata": {"name": "echo"}}
    body = {**environment, "spec": {"entry": "echo.py"}}
    await cluster.client.create(cluster.folder("environments"), body, Body)
    await cluster.patch("environments", "echo", {"status": described(observedGeneration=1)}, "/status")
    process = await asyncio.create_subprocess_exec(
        *clotho.argv("test", "echo"), env=clotho.environment(), stderr=asyncio.subprocess.PIPE
    )

    async def tests() -> tuple[bool, list[Body]]:
        found = await cluster.all("inferencetests")
        return bool(found), found

    await eventually("created", tests)
    process.send_signal(number)
    _, err = await process.communicate()
    assert process.returncode == code, err
    assert await cluster.all("inferencetests") == []


async def test_no_cluster_is_one_line_with_a_code(clotho: Clotho, tmp_path: Path) -> None:
    config = yaml.safe_load(clotho.kubeconfig.read_text())
    for each in config["clusters"]:
        each["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    away = await Clotho(tmp_path / "config", clotho.namespace)("run", "list")
    assert (away.code, away.err.count("\n")) == (5, 1)
    checked = await Clotho(tmp_path / "config", clotho.namespace)("check")
    assert checked.code == 1
    assert "MISSING cluster" in checked.out


async def test_a_dry_run_is_validated_by_the_api_server(clotho: Clotho, cluster: ClusterAccess, manifest: str) -> None:
    dry = await clotho("run", "start", "-f", manifest, "--dry-run", "-o", "json")
    assert dry.data["spec"]["training"]["learningRate"] == 4e-5, "the defaults are filled in"  # type: ignore[index]
    assert await cluster.all("trainingruns") == []


async def test_check_reports_the_rights_of_administrators_and_guests(
    clotho: Clotho, cluster: ClusterAccess, kubectl: Kubectl, operator: OperatorProcess, tmp_path: Path
) -> None:
    kubectl.in_namespace(clotho.namespace).run(
        "create", "secret", "generic", "wandb", "--from-literal=WANDB_API_KEY=k3y"
    )

    async def leases() -> tuple[bool, list[Body]]:
        found = await cluster.all("leases")
        return bool(found), found

    await eventually("an operator at work", leases)
    well = await clotho("check", "--operator-namespace", clotho.namespace)
    assert well.code == 0, well.out
    assert "k3y" not in well.out
    for line in ("ok      custom resources", "ok      operator", "ok      permissions", "ok      WANDB_API_KEY"):
        assert line in well.out
    assert "-       TINKER_API_KEY: no Secret tinker" in well.out

    kubectl.in_namespace(clotho.namespace).run("create", "serviceaccount", "guest")
    token = kubectl.in_namespace(clotho.namespace).run("create", "token", "guest").strip()
    config = yaml.safe_load(clotho.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    (tmp_path / "guest").write_text(yaml.safe_dump(config))
    (tmp_path / "guest").chmod(0o600)
    guest = Clotho(tmp_path / "guest", clotho.namespace)
    poor = await guest("check")
    assert poor.code == 1
    assert "MISSING permissions: not allowed: get trainingruns" in poor.out
    refused = await guest("run", "list")
    assert (refused.code, "clotho check" in refused.err) == (4, True)


async def test_check_of_a_cluster_tries_images_and_policies_and_leaves_nothing(
    clotho: Clotho, cluster: ClusterAccess, kubelet: FakeKubelet
) -> None:
    checking = asyncio.create_task(
        clotho("check", "--cluster", "--image", "example/api", "--image", "example/trainer", "-o", "json")
    )

    async def client() -> tuple[bool, list[Body]]:
        found = [pod for pod in await cluster.all("pods") if pod["metadata"]["name"].endswith("-client")]
        return any(pod["status"].get("phase") == "Running" for pod in found), found

    (pod,) = await eventually("a client pod", client)
    assert len(await cluster.all("networkpolicies")) == 1
    await kubelet.fail(pod, exit_code=REACHED_BOTH)
    checked = await checking
    states = {each["what"]: each["state"] for each in checked.data}
    assert checked.code == 1
    assert states["NetworkPolicies"] == "problem"
    assert states["CRD TrainingRun"] == states["image example/trainer"] == states["clocks"] == "ok"
    assert {states["GPUs"], states["storage"]} <= {"ok", "warning", "problem"}
    assert [await cluster.all(kind) for kind in ("pods", "networkpolicies")] == [[], []]


async def test_missing_logs_are_reported_and_do_not_hang(
    clotho: Clotho, cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, manifest: str
) -> None:
    """No kubelet answers here: each missing log is reported, and nothing hangs."""
    await clotho("run", "start", "-f", manifest)
    await cluster.until_phase("Running", "first")
    logs = await clotho("run", "logs", "first", "-c", "trainer")
    assert logs.code == 0
    assert logs.err.startswith("trainer: ")


async def test_logs_are_followed_from_before_the_first_pod_to_the_end_of_the_run(
    clotho: Clotho,
    control_plane: ControlPlane,
    cluster: ClusterAccess,
    kubelet: FakeKubelet,
    operator: OperatorProcess,
    manifest: str,
) -> None:
    await kubelet.serve_logs(control_plane.authority.issue_server("fake-kubelet", ["127.0.0.1"]))
    kubelet.logs, kubelet.makes_ready = {"trainer": "first\n"}, False
    await clotho("run", "start", "-f", manifest)
    following = await asyncio.create_subprocess_exec(
        *clotho.argv("run", "logs", "first", "-f"),
        env=clotho.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert following.stdout is not None
    assert following.stderr is not None
    async with asyncio.timeout(60):
        assert await following.stderr.readline(), "what it waits for"
        kubelet.makes_ready = True
        assert await following.stdout.readline() == b"trainer  first\n"
        await cluster.until_phase("Running", "first")
        kubelet.logs["trainer"] = "second\n"
        trainer = next(pod for pod in await cluster.pods("first") if component(pod) == "trainer")
        await kubelet.fail(trainer)
        assert await following.stdout.readline() == b"trainer  second\n"
        kubelet.progress = FINISHED
        _, last = await following.communicate()
    assert following.returncode == 0
    assert last.decode().splitlines()[-1] == "Completed all 100 steps; the final checkpoint is written."


def operator_of_release(registry: str, tag: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/part-of": "clotho", "app.kubernetes.io/component": "operator"}
    names = ("api-server", "trainer", "environment")
    variables = [
        {"name": f"CLOTHO_IMAGES_{name.upper().replace('-', '_')}", "value": f"{registry}/{name}:{tag}"}
        for name in names
    ]
    container = {"name": "operator", "image": f"{registry}/operator:{tag}", "env": variables}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "clotho", "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


async def test_discovered_environments_are_accepted_by_the_api_server(
    clotho: Clotho, kubectl: Kubectl, tmp_path: Path
) -> None:
    (tmp_path / "echo.py").write_text('class Echo(BaseEnv):\n    """Say it."""\n')
    (tmp_path / "broken.py").write_text("class Broken(")
    target = tmp_path / "out.yaml"
    discover = ("env", "discover", str(tmp_path), "--config-map", "--operator-namespace", clotho.namespace)
    without = await clotho(*discover)
    assert (without.code, "pass --image" in without.err) == (3, True)
    kubectl.in_namespace(clotho.namespace).apply(operator_of_release("registry.example/team", "1.2.3"))
    found = await clotho(*discover, "--write", str(target))
    assert found.code == 0
    assert "image: registry.example/team/environment-atropos:1.2.3" in target.read_text()
    assert "warning: " in found.err
    kubectl.in_namespace(clotho.namespace).run("apply", "--filename", str(target))
    listed = await clotho("env", "list")
    assert listed.out.splitlines()[1].split()[0] == "echo"
    unknown = await clotho("env", "describe", "ecko")
    assert (unknown.code, "did you mean echo?" in unknown.err) == (3, True)


async def test_a_policy_is_explained(clotho: Clotho, kubectl: Kubectl) -> None:
    policy = {
        "apiVersion": "clotho.dev/v1alpha1",
        "kind": "TrainingPolicy",
        "metadata": {"name": "lab"},
        "spec": {"locked": {"training": {"steps": 2500}}, "limits": {"gpus": 1}},
    }
    kubectl.in_namespace(clotho.namespace).apply(policy)
    explained = await clotho("policy", "explain")
    assert explained.code == 0
    assert ["training.steps", "2500"] in [line.split() for line in explained.out.splitlines()]


async def test_kubectl_finds_its_plugin_and_shells_complete(
    clotho: Clotho, cluster: ClusterAccess, kubectl: Kubectl
) -> None:
    await cluster.create_run("first")
    folder = Path(sys.executable).parent  # where the console scripts are
    environment = {**clotho.environment(), "PATH": f"{folder}:{os.environ['PATH']}"}

    async def output_of(*argv: str) -> str:
        process = await asyncio.create_subprocess_exec(*argv, env=environment, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0].decode()

    program = str(kubectl.program)
    assert (await output_of(program, "clotho", "--help")).startswith("usage: kubectl clotho ")
    listed = await output_of(program, "clotho", "run", "list", "--namespace", clotho.namespace)
    assert listed.splitlines()[1].split()[0] == "first"
    offered = await output_of(program, "__complete", "clotho", "run", "status", "--namespace", clotho.namespace, "f")
    assert offered.splitlines()[:2] == ["first", ":4"]
    script = "source <(clotho completion bash); COMP_WORDS=(clotho run st); COMP_CWORD=2; _clotho; echo ${COMPREPLY[@]}"
    assert (await output_of("bash", "-c", script)).split() == ["start", "status", "stop"]


async def test_labels_of_a_manifest_are_kept(clotho: Clotho, cluster: ClusterAccess) -> None:
    manifest = run_manifest("first")
    manifest["metadata"] |= {"labels": {"team": "lab"}, "namespace": cluster.namespace}
    started = await clotho("run", "start", "-f", "-", stdin=yaml.safe_dump(manifest))
    assert started.code == 0, started.err
    assert (await cluster.run("first"))["metadata"]["labels"] == {"team": "lab"}
    manifest["metadata"]["namespace"] = "elsewhere"
    refused = await clotho("run", "start", "-f", "-", stdin=yaml.safe_dump(manifest))
    assert (refused.code, "is for namespace elsewhere" in refused.err) == (2, True)
