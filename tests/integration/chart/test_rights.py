"""The operator's rights against the API server's audit log: nothing was refused, and nothing is granted in vain."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clotho.cluster.apply import Writer
from clotho.cluster.client import ApiClient
from clotho.cluster.kinds import RESOURCES
from clotho.cluster.kubeconfig import from_kubeconfig
from clotho.cluster.store import Store
from clotho.plan.model import ObjectKey
from clotho_dev.cluster.control_plane import ControlPlane
from rig.cluster_access import ClusterAccess, condition, eventually, run_manifest
from rig.fake_kubelet import FakeKubelet

ANSWERED = ("ResponseStarted", "ResponseComplete")
Right = tuple[str, str, str]  # group, resource with subresource, verb
FINISHED = {"state": "finished", "step": 200, "totalSteps": 200, "checkpoint": {"step": 200, "path": "/ckpt/200"}}


def granted(rules: Iterator[dict[str, Any]]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests_of(log: Path, user: str) -> list[dict[str, Any]]:
    """Answered ones; a watch is as soon as it is open."""
    entries = [json.loads(line) for line in log.read_text().splitlines() if user in line]
    return [e for e in entries if e["user"]["username"] == user and "objectRef" in e and e["stage"] in ANSWERED]


def right(entry: dict[str, Any]) -> Right:
    target = entry["objectRef"]
    resource = target["resource"] + (f"/{target['subresource']}" if "subresource" in target else "")
    return target.get("apiGroup", ""), resource, entry["verb"]


def secrets_read(entries: list[dict[str, Any]]) -> set[str]:
    """Their names, without the run's id at the end."""
    reads = [e["objectRef"] for e in entries if e["objectRef"]["resource"] == "secrets" and e["verb"] == "get"]
    return {re.sub(r"-[0-9a-f]{8}$", "", each["name"]) for each in reads}


@pytest.mark.usefixtures("kueue_crds")
@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
async def test_rights_are_exactly_what_is_used(
    mode: str,
    control_plane: ControlPlane,
    install_chart: Any,
    start_operator: Any,
    cluster: ClusterAccess,
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    scope = f"runs.namespaces={{{cluster.namespace}}}"
    installed = install_chart(*([scope] if mode == "namespaced" else []))
    operator = await start_operator(installed)
    await use_every_feature(cluster, kubelet)
    await operator.terminate()
    await read_each_kind_again(installed.write_kubeconfig(tmp_path / "again.kubeconfig"), cluster.namespace)

    assert control_plane.audit_log is not None
    entries = requests_of(control_plane.audit_log, installed.user)
    refused = {right(e) for e in entries if e["annotations"].get("authorization.k8s.io/decision") != "allow"}
    assert refused == set()
    assert secrets_read(entries) <= {"q", "r", "k", "hub", "not-there"}, "other Secrets were read"
    made_by_apply = {
        (*right(e)[:2], "create") for e in entries if e["verb"] == "patch" and e["responseStatus"]["code"] == 201
    }
    used = {right(e) for e in entries} | made_by_apply  # a patch that creates needs the right to create as well
    assert granted(installed.rules()) - used == set(), "granted, but never asked for"
    assert used - granted(installed.rules()) == set(), "allowed by another role"


async def use_every_feature(cluster: ClusterAccess, kubelet: FakeKubelet) -> None:
    """A run that never starts; one with a budget, a crash, more steps, an end and its expiry; then the catalogue."""
    kubelet.makes_ready = False
    await cluster.create_run("q", storage={"retain": True})
    await cluster.until_objects("persistentvolumeclaims", "there", lambda found: len(found) == 2, "q")
    await cluster.delete("trainingruns", "q")
    await cluster.create_run("s", storage={"storageClassName": "not-there"})
    await cluster.until("waiting", lambda run: "StorageClass" in run.get("status", {}).get("message", ""), "s")
    await cluster.delete("trainingruns", "s")
    await cluster.until_objects("persistentvolumeclaims", "gone", lambda found: not found, "q")
    kubelet.makes_ready = True
    await queue_in_kueue(cluster)
    options = {
        "model": {"name": "tiny", "secretName": "hub"},
        "storage": {"retain": False},
        "trainer": {"disruptionBudget": True},
        "restarts": {"backoffSeconds": 0},
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}}
    await cluster.client.create(cluster.folder("secrets"), secret, dict[str, Any])
    kubelet.history = {"series": {"steps": [1], "figures": {"loss": [0.5]}}}  # kept in a ConfigMap
    await cluster.create_run("r", **options)
    await cluster.until_phase("Running", "r")
    pod = next(p for p in await cluster.pods("r") if p["metadata"]["name"].endswith("-trainer"))
    await kubelet.fail(pod)
    await cluster.until("restarted", lambda run: run["status"].get("restarts", 0) > 0, "r")
    await cluster.until_phase("Running", "r")
    await cut_off(cluster, "pods")
    await cut_off(cluster, "persistentvolumeclaims")
    await cluster.change_run("r", training={"steps": 200})
    await cluster.until("updated with more steps", lambda run: run["status"]["observedGeneration"] == 2, "r")
    kubelet.progress = FINISHED
    await cluster.until_phase("Completed", "r")
    await cluster.change_run("r", ttlSecondsAfterFinished=0)
    await cluster.until_gone("trainingruns", "r")
    await describe_and_try(cluster)


async def cut_off(cluster: ClusterAccess, plural: str) -> None:
    """Take the owner from a child of the run; the operator puts it back."""
    child = next(each for each in await cluster.of_run(plural, "r") if each["metadata"].get("ownerReferences"))
    name = child["metadata"]["name"]
    await cluster.patch(plural, name, {"metadata": {"ownerReferences": None}})

    async def has_owner() -> tuple[bool, dict[str, Any]]:
        body = await cluster.get(plural, name)
        return "ownerReferences" in body["metadata"], body

    await eventually("owned again", has_owner)


async def queue_in_kueue(cluster: ClusterAccess) -> None:
    """The test admits the run in Kueue's place."""
    version, name = "kueue.x-k8s.io/v1beta2", cluster.namespace
    urgent = {"apiVersion": version, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": 1}
    await cluster.client.create(f"/apis/{version}/workloadpriorityclasses", urgent, dict[str, Any])
    manifest = run_manifest("k")
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": name}
    await cluster.client.create(cluster.folder("trainingruns"), manifest, dict[str, Any])
    (workload,) = await cluster.until_objects("workloads", "there", lambda found: len(found) == 1, "k")
    passed = {"status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {
        "conditions": [{"type": kind, **passed} for kind in ("QuotaReserved", "Admitted")],
        "admission": {
            "clusterQueue": "team",
            "podSetAssignments": [
                {"name": each["name"], "flavors": {"cpu": "default-flavor"}, "count": each["count"]}
                for each in workload["spec"]["podSets"]
            ],
        },
    }
    await cluster.patch("workloads", workload["metadata"]["name"], {"status": status}, "/status")
    await cluster.until_phase("Running", "k")
    await cluster.change_run("k", stop=True)
    await cluster.until_objects("workloads", "gone", lambda found: not found, "k")


async def describe_and_try(cluster: ClusterAccess) -> None:
    """An environment with files of its own, and a test of it that expires."""

    async def create(folder: str, **body: Any) -> None:
        await cluster.client.create(cluster.folder(folder), body, dict[str, Any])

    ours = {"apiVersion": "clotho.dev/v1alpha1"}
    code = {"mine.py": "x = 1"}
    await create("configmaps", apiVersion="v1", kind="ConfigMap", metadata={"name": "code"}, data=code)
    await create("environments", **ours, kind="Environment", metadata={"name": "e"}, spec={"configMapName": "code"})

    async def is_described() -> tuple[bool, dict[str, Any]]:
        body = await cluster.get("environments", "e")
        return condition(body, "Ready").get("status") == "True", body

    await eventually("described", is_described)
    spec = {"environmentName": "e", "ttlSecondsAfterFinished": 0, "config": {"unknown": 1}}  # it fails at once
    await create("inferencetests", **ours, kind="InferenceTest", metadata={"name": "t"}, spec=spec)
    await cluster.until_gone("inferencetests", "t")


async def read_each_kind_again(kubeconfig: Path, namespace: str) -> None:
    """What the operator does after an answer that was lost: it looks the object up by name."""
    async with ApiClient(from_kubeconfig(kubeconfig)) as client:
        writer = Writer(client, Store(), lambda: True)
        for kind in RESOURCES:
            assert await writer.refresh(namespace, ObjectKey(kind, "not-there")) is None
