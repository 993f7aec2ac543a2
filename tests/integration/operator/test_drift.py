"""What people change by hand on the objects of a run: repaired at once, or noticed as soon as it is undone."""

from datetime import UTC, datetime, timedelta

import pytest

from rig.cluster_access import Body, ClusterAccess, component, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

LABEL = "app.kubernetes.io/managed-by"


async def running_trainer(cluster: ClusterAccess) -> tuple[Body, Body]:
    """A run that is Running, and its trainer's pod."""
    await cluster.create_run("r")
    run = await cluster.until_phase("Running", "r")
    (trainer,) = [pod for pod in await cluster.pods("r") if component(pod) == "trainer"]
    return run, trainer


async def test_pod_whose_managed_by_label_was_removed_and_restored_is_recognised(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    run, trainer = await running_trainer(cluster)
    name = trainer["metadata"]["name"]
    await cluster.patch("pods", name, {"metadata": {"labels": {LABEL: None}}})
    await cluster.patch("pods", name, {"metadata": {"labels": {LABEL: "clotho-operator"}}})
    kubelet.progress |= {"step": 5}
    run = await cluster.until("at step 5", lambda r: r["status"].get("progress", {}).get("step") == 5, "r")
    assert run["status"]["phase"] == "Running"
    assert (await cluster.get("pods", name))["metadata"]["uid"] == trainer["metadata"]["uid"]


async def test_pod_whose_owner_label_was_changed_and_restored_is_probed_again(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    run, trainer = await running_trainer(cluster)
    name = trainer["metadata"]["name"]
    await cluster.patch("pods", name, OTHER_OWNER)
    await cluster.until_phase("Starting", "r")
    await cluster.patch("pods", name, {"metadata": {"labels": {"clotho.dev/owner-uid": run["metadata"]["uid"]}}})
    kubelet.progress |= {"step": 5}
    await cluster.until("at step 5", lambda r: r["status"].get("progress", {}).get("step") == 5, "r")


async def test_deleted_pod_is_replaced_although_its_run_label_was_removed(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    _, trainer = await running_trainer(cluster)
    await cluster.patch("pods", trainer["metadata"]["name"], {"metadata": {"labels": {"clotho.dev/run": None}}})
    await cluster.delete("pods", trainer["metadata"]["name"], gracePeriodSeconds=0)
    await cluster.until_pods("replaced", lambda pods: any(component(pod) == "trainer" for pod in pods), "r")


def own_fields(body: Body) -> Body:
    """What the operator has rendered, without what the server and others have added."""
    return {"labels": body["metadata"]["labels"], "spec": body["spec"]}


OPEN_WALL = {"spec": {"egress": [{}]}}
WALL_AROUND_NOTHING = {"spec": {"podSelector": {"matchLabels": {"app": "another"}}}}
INGRESS_ONLY = {"spec": {"policyTypes": ["Ingress"], "egress": None}}
OTHER_PODS = {"spec": {"selector": {"app": "another"}}}
OTHER_PORT = {"spec": {"ports": [{"name": "api-server", "port": 8000, "targetPort": 9999, "protocol": "TCP"}]}}
NO_LABEL = {"metadata": {"labels": {LABEL: None}}}
OTHER_OWNER = {"metadata": {"labels": {"clotho.dev/owner-uid": "another"}}}


OTHER_RUN = {"metadata": {"labels": {"clotho.dev/run": "another"}}}
OTHER_HOST = {
    "spec": {
        "type": "ExternalName",
        "externalName": "another.example",
        **dict.fromkeys(("clusterIP", "clusterIPs", "selector", "ports")),
    }
}


@pytest.mark.parametrize(
    ("plural", "change"),
    [
        ("networkpolicies", OPEN_WALL),
        ("networkpolicies", WALL_AROUND_NOTHING),
        ("networkpolicies", INGRESS_ONLY),
        ("networkpolicies", NO_LABEL),
        ("networkpolicies", OTHER_OWNER),
        ("networkpolicies", OTHER_RUN),
        ("services", OTHER_PODS),
        ("services", OTHER_PORT),
        ("services", OTHER_HOST),
        ("services", NO_LABEL),
    ],
)
async def test_hand_edit_is_repaired(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, plural: str, change: Body
) -> None:
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    (before,) = await cluster.of_run(plural, "r")
    name = before["metadata"]["name"]
    edited = await cluster.patch(plural, name, change)
    assert own_fields(edited) != own_fields(before)

    async def is_repaired() -> tuple[bool, Body]:
        now = await cluster.get(plural, name)
        return own_fields(now) == own_fields(before), now

    await eventually("repaired", is_repaired)


async def test_deleted_secret_is_made_again_and_pods_get_the_new_token(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """In the order of a stop, so that the trainer saves a checkpoint; no pod of the new ones meets one of the old."""
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    old = {pod["metadata"]["uid"] for pod in await cluster.pods("r")}
    (secret,) = await cluster.of_run("secrets", "r")

    async def is_old_enough() -> tuple[bool, str]:
        """Creation times are in whole seconds: the next Secret has to be seconds younger than the pods."""
        created = datetime.fromisoformat(secret["metadata"]["creationTimestamp"])
        return datetime.now(UTC) - created > timedelta(seconds=4), str(created)

    async def are_replaced() -> tuple[bool, object]:
        uids = {pod["metadata"]["uid"] for pod in await cluster.pods("r")}
        return len(uids) == 3 and not uids & old, kubelet.ended

    await eventually("old enough", is_old_enough)
    await cluster.delete("secrets", secret["metadata"]["name"])
    await eventually("replaced", are_replaced, limit_seconds=60)
    assert kubelet.ended == ["environment", "trainer", "api-server"]
    await cluster.until_phase("Running", "r")
    assert kubelet.trainers_seen_together == 1
