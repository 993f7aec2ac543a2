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


@pytest.mark.parametrize("label", ["clotho.dev/owner-uid", "clotho.dev/run", "app.kubernetes.io/component"])
async def test_removed_label_of_a_pod_is_put_back(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, label: str
) -> None:
    _, trainer = await running_trainer(cluster)
    name, uid = trainer["metadata"]["name"], trainer["metadata"]["uid"]
    await cluster.patch("pods", name, {"metadata": {"labels": {label: None}}})

    async def is_restored() -> tuple[bool, Body]:
        now = await cluster.get("pods", name)
        return now["metadata"]["labels"] == trainer["metadata"]["labels"], now["metadata"]

    assert (await eventually("restored", is_restored))["uid"] == uid
    kubelet.progress |= {"step": 5}
    await cluster.until("at step 5", lambda r: r["status"].get("progress", {}).get("step") == 5, "r")


@pytest.mark.parametrize("label", ["clotho.dev/run", LABEL])
async def test_deleted_pod_is_replaced_at_once_although_it_had_lost_a_label(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess, label: str
) -> None:
    """Long before the next resync, whose interval is minutes."""
    _, trainer = await running_trainer(cluster)
    name, uid = trainer["metadata"]["name"], trainer["metadata"]["uid"]
    await cluster.patch("pods", name, {"metadata": {"labels": {label: None}}})
    await cluster.delete("pods", name, gracePeriodSeconds=0)

    def is_replaced(pods: list[Body]) -> bool:
        return any(component(pod) == "trainer" and pod["metadata"]["uid"] != uid for pod in pods)

    await cluster.until_pods("replaced", is_replaced, "r")


async def test_failed_pod_that_lost_a_label_is_replaced(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """Its name would be taken for ever."""
    _, trainer = await running_trainer(cluster)
    await cluster.patch("pods", trainer["metadata"]["name"], {"metadata": {"labels": {"clotho.dev/run": None}}})
    await kubelet.fail(trainer)
    run = await cluster.until("restarted", lambda r: r["status"].get("restarts", 0) > 0, "r")
    await cluster.until_phase("Running", "r")
    assert run["status"]["components"]["trainer"]["lastExit"]


def own_fields(body: Body) -> Body:
    """What the operator has rendered, without what the server and others have added."""
    owners = body["metadata"].get("ownerReferences")
    return {"labels": body["metadata"]["labels"], "owners": owners, "spec": body["spec"]}


OPEN_WALL = {"spec": {"egress": [{}]}}
WALL_AROUND_NOTHING = {"spec": {"podSelector": {"matchLabels": {"app": "another"}}}}
INGRESS_ONLY = {"spec": {"policyTypes": ["Ingress"], "egress": None}}
OTHER_PODS = {"spec": {"selector": {"app": "another"}}}
OTHER_PORT = {"spec": {"ports": [{"name": "api-server", "port": 8000, "targetPort": 9999, "protocol": "TCP"}]}}
OUTSIDE_ADDRESS = {"spec": {"externalIPs": ["203.0.113.7"]}}
NO_OWNER = {"metadata": {"ownerReferences": None}}
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
        ("services", OUTSIDE_ADDRESS),
        ("services", NO_LABEL),
        ("services", NO_OWNER),
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


async def until_replaced_in_order(cluster: ClusterAccess, kubelet: FakeKubelet, old: set[str]) -> None:
    """In the order of a stop, so that the trainer saves a checkpoint; then the run is Running again."""

    async def are_replaced() -> tuple[bool, object]:
        uids = {pod["metadata"]["uid"] for pod in await cluster.pods("r")}
        return len(uids) == 3 and not uids & old, kubelet.ended

    await eventually("replaced", are_replaced, limit_seconds=60)
    assert kubelet.ended == ["environment", "trainer", "api-server"]
    await cluster.until_phase("Running", "r")


async def test_deleted_secret_is_made_again_and_pods_get_the_new_token(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """No pod of the new ones meets one of the old."""
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    old = {pod["metadata"]["uid"] for pod in await cluster.pods("r")}
    (secret,) = await cluster.of_run("secrets", "r")

    async def is_old_enough() -> tuple[bool, str]:
        """Creation times are in whole seconds: the next Secret has to be seconds younger than the pods."""
        created = datetime.fromisoformat(secret["metadata"]["creationTimestamp"])
        return datetime.now(UTC) - created > timedelta(seconds=4), str(created)

    await eventually("old enough", is_old_enough)
    await cluster.delete("secrets", secret["metadata"]["name"])
    await until_replaced_in_order(cluster, kubelet, old)
    assert kubelet.trainers_seen_together == 1


async def test_a_token_that_was_edited_reaches_all_pods(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """Otherwise the next pod that is restarted could not talk to those that have the old one."""
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    old = {pod["metadata"]["uid"] for pod in await cluster.pods("r")}
    (secret,) = await cluster.of_run("secrets", "r")
    chosen = {"CLOTHO_TRAINER_TOKEN": "Y2hvc2Vu"}
    await cluster.patch("secrets", secret["metadata"]["name"], {"data": chosen})

    await until_replaced_in_order(cluster, kubelet, old)
    assert (await cluster.get("secrets", secret["metadata"]["name"]))["data"] == secret["data"] | chosen


EMPTY_TOKEN = {"data": {"CLOTHO_TRAINER_TOKEN": ""}}
OTHER_CONFIG = {"data": {"run.yaml": "YTogMQ=="}, "metadata": {"annotations": {"clotho.dev/contents": "whatever"}}}


SECRET_EDITS = {
    "empty-token": EMPTY_TOKEN,
    "other-config": OTHER_CONFIG,
    "no-owner": NO_OWNER,
    "other-run": OTHER_RUN,
    "other-owner": OTHER_OWNER,
}


async def test_hand_edits_of_secrets_are_repaired(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """One edit for each run: Secrets are not watched but read every ten seconds, however many there are."""
    for run in SECRET_EDITS:
        await cluster.create_run(run)
    for run in SECRET_EDITS:
        await cluster.until_phase("Running", run)
    before = {run: (await cluster.of_run("secrets", run))[0] for run in SECRET_EDITS}
    for run, change in SECRET_EDITS.items():
        await cluster.patch("secrets", before[run]["metadata"]["name"], change)

    async def unrepaired() -> tuple[bool, list[str]]:
        left = [run for run, secret in before.items() if not await is_like(cluster, secret)]
        return not left, left

    await eventually("repaired", unrepaired)


async def is_like(cluster: ClusterAccess, before: Body) -> bool:
    """But for its tokens, which are made anew when one is lost."""
    now = await cluster.get("secrets", before["metadata"]["name"])
    are_marked = all(now["metadata"].get(key) == before["metadata"][key] for key in ("labels", "ownerReferences"))
    is_filled = now["data"]["run.yaml"] == before["data"]["run.yaml"] and all(now["data"].values())
    return are_marked and is_filled


async def test_an_object_of_another_owner_is_named_and_left_alone(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """The run's Secret is taken away, and another's is put in its place."""
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    (secret,) = await cluster.of_run("secrets", "r")
    name = secret["metadata"]["name"]
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "another"}}
    another = await cluster.client.create(cluster.folder("configmaps"), config_map, Body)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": another["metadata"]["uid"]}
    metadata = {"name": name, "ownerReferences": [owner]}
    await operator.kill()
    await cluster.delete("secrets", name)
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"key": "dmFsdWU="}}
    await cluster.client.create(cluster.folder("secrets"), theirs, Body)
    await operator.start()
    words = f"Secret {name}: it exists and belongs to ConfigMap another; delete it, then it is created."
    await cluster.until("named", lambda r: words in r["status"]["message"], "r")
    assert (await cluster.get("secrets", name))["data"] == theirs["data"]
