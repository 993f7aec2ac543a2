"""Environments and inference tests on a real API server; the test plays the environment's part."""

import json
from typing import Any

import pytest

from clotho.cluster.outcomes import Invalid
from rig.cluster_access import Body, ClusterAccess, component, condition, eventually
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

FIELDS = [
    {"name": "group_size", "type": "integer", "default": 8, "minimum": 1},
    {"name": "letters", "type": "string", "default": "abc", "minLength": 1},
    {"name": "tokenizer_name", "type": "string", "fixed": True},
]
DESCRIPTION = {"name": "letters", "className": "Letters", "description": "Write letters.", "fields": FIELDS}


async def create(cluster: ClusterAccess, plural: str, kind: str, name: str, **spec: Any) -> Body:
    body = {"apiVersion": "clotho.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return await cluster.client.create(cluster.folder(plural), body, Body)


async def until(cluster: ClusterAccess, plural: str, name: str, what: str, check: Any) -> Body:
    async def look() -> tuple[bool, Body]:
        body = await cluster.get(plural, name)
        return bool(check(body)), body

    return await eventually(f"{plural}/{name} {what}", look)


def is_ready(body: Body) -> bool:
    return bool(condition(body, "Ready").get("status") == "True")


async def pods_of(cluster: ClusterAccess, kind: str) -> list[Body]:
    return [pod for pod in await cluster.all("pods") if component(pod) == kind]


async def described(cluster: ClusterAccess, kubelet: FakeKubelet, name: str = "letters", **spec: Any) -> Body:
    kubelet.description = DESCRIPTION
    await create(cluster, "environments", "Environment", name, **spec)
    return await until(cluster, "environments", name, "described", is_ready)


async def test_an_environment_is_described_and_its_pod_deleted(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    environment = await described(cluster, kubelet)
    status = environment["status"]
    assert (status["name"], status["className"], status["description"]) == ("letters", "Letters", "Write letters.")
    assert [field["name"] for field in status["fields"]] == ["group_size", "letters", "tokenizer_name"]
    assert status["described"]["entry"] == "letters"

    async def look() -> tuple[bool, list[Body]]:
        left = await pods_of(cluster, "environment-description")
        return not left, left

    await eventually("the describing pod gone", look)
    version = (await cluster.get("environments", "letters"))["metadata"]["resourceVersion"]
    await cluster.patch("environments", "letters", {"spec": {"description": "Ours."}})
    changed = await until(cluster, "environments", "letters", "seen", lambda e: e["status"]["observedGeneration"] == 2)
    assert int(changed["metadata"]["resourceVersion"]) > int(version)
    assert changed["status"]["described"] == status["described"], "the code is the same, so nothing is imported again"


async def test_the_describing_pod_has_no_credentials_and_no_egress(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.binds = False
    template = {"spec": {"nodeSelector": {"disk": "ssd"}}}
    await create(cluster, "environments", "Environment", "letters", secretName="keys", template=template)

    async def look() -> tuple[bool, list[Body]]:
        found = await pods_of(cluster, "environment-description")
        return bool(found), found

    (pod,) = await eventually("the describing pod", look)
    spec, (main,) = pod["spec"], pod["spec"]["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] > 0
    assert "envFrom" not in main
    assert "keys" not in json.dumps(pod["spec"])
    assert spec["nodeSelector"] == {"disk": "ssd"}
    (wall,) = await cluster.all("networkpolicies")
    assert wall["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert wall["spec"].get("egress", []) == []
    assert "Egress" in wall["spec"]["policyTypes"]


async def test_another_image_is_described_again_and_a_failure_is_reported(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await described(cluster, kubelet)
    kubelet.makes_ready = False
    await cluster.patch("environments", "letters", {"spec": {"image": "registry/letters:2"}})

    async def look() -> tuple[bool, list[Body]]:
        found = await pods_of(cluster, "environment-description")
        return [pod["spec"]["containers"][0]["image"] for pod in found] == ["registry/letters:2"], found

    (pod,) = await eventually("the new image imported", look)
    words = {"reason": "EnvironmentFailed", "message": "letters could not be imported within 120 s; it printed nothing"}
    await kubelet.fail(pod, message=json.dumps(words))
    stalled = await until(
        cluster, "environments", "letters", "stalled", lambda e: condition(e, "Stalled").get("status") == "True"
    )
    assert "could not be imported within 120 s" in stalled["status"]["message"]
    assert stalled["status"].get("fields", []) == []
    kubelet.makes_ready = True
    await cluster.delete("pods", pod["metadata"]["name"])
    await until(cluster, "environments", "letters", "described after all", is_ready)


async def test_new_files_are_described_again(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    kubelet.description = DESCRIPTION
    spec = {"configMapName": "code", "entry": "/environment/mine.py"}
    await create(cluster, "environments", "Environment", "mine", **spec)
    await until(
        cluster, "environments", "mine", "waiting", lambda e: "ConfigMap code" in e["status"].get("message", "")
    )
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"mine.py": "a = 1"}}
    await cluster.client.create(cluster.folder("configmaps"), files, Body)
    await cluster.patch("environments", "mine", {"metadata": {"annotations": {"look": "again"}}})
    first = await until(cluster, "environments", "mine", "described", is_ready)
    await cluster.patch("configmaps", "code", {"data": {"mine.py": "a = 2"}})
    await cluster.patch("environments", "mine", {"metadata": {"annotations": {"look": "once more"}}})
    await until(
        cluster,
        "environments",
        "mine",
        "described anew",
        lambda e: is_ready(e) and e["status"]["described"]["files"] != first["status"]["described"]["files"],
    )


async def test_a_flood_of_fields_is_bounded(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    many = [
        {"name": f"field_{n}", "type": "string", "default": "x" * 300, "description": "y" * 300} for n in range(300)
    ]
    kubelet.description = {"name": "big", "className": "B" * 1000, "fields": many}
    await create(cluster, "environments", "Environment", "big")
    environment = await until(cluster, "environments", "big", "described", is_ready)
    status = environment["status"]
    assert len(status["fields"]) + status["omittedFields"] == 300
    assert len(status["fields"]) <= 256
    assert len(status["className"]) <= 128


async def test_a_run_waits_for_its_environment_and_takes_it_as_it_is_then(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    named = {"name": "letters", "environmentName": "letters", "config": {"letters": "xyz"}}
    await cluster.create_run("r", environments=[named])
    waiting = await cluster.until("waiting", lambda r: "environment letters" in r["status"].get("message", ""), "r")
    assert waiting["status"]["phase"] == "Pending"
    assert condition(waiting, "Accepted")["status"] == "True"
    assert await cluster.pods("r") == []
    await described(cluster, kubelet, image="registry/letters:1", config={"letters": "abc"})
    run = await cluster.until_phase("Running", "r")
    assert run["status"]["resolved"][0]["config"] == {"group_size": 8, "letters": "xyz"}
    await cluster.patch("environments", "letters", {"spec": {"image": "registry/letters:2"}})
    (pod,) = [pod for pod in await cluster.pods("r") if component(pod) == "environment"]
    assert pod["spec"]["containers"][0]["image"] == "registry/letters:1"
    await kubelet.fail(pod)
    await cluster.until("restarted", lambda r: r["status"].get("restarts", 0) > 0, "r")
    await cluster.until_phase("Running", "r")
    (pod,) = [pod for pod in await cluster.pods("r") if component(pod) == "environment"]
    assert pod["spec"]["containers"][0]["image"] == "registry/letters:1", "a live run is not disturbed"


async def test_a_wrong_config_is_refused_with_everything_at_once(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await described(cluster, kubelet)
    config = {"leters": "x", "group_size": 0.5, "tokenizer_name": "mine"}
    with pytest.raises(Invalid, match="group_size"):
        await cluster.create_run("r", environments=[{"name": "a", "environmentName": "letters", "config": config}])
    config = {"leters": "x", "letters": 3, "tokenizer_name": "mine"}
    await cluster.create_run("r", environments=[{"name": "a", "environmentName": "letters", "config": config}])
    run = await cluster.until("refused", lambda r: condition(r, "Accepted").get("status") == "False", "r")
    message = run["status"]["message"]
    assert "leters: unknown field; did you mean letters?" in message
    assert "letters: 3 is not of type string" in message
    assert "tokenizer_name: it is decided by the run" in message
    assert await cluster.pods("r") == []


async def test_an_inference_test_from_start_to_expiry(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await described(cluster, kubelet)
    models = [
        {"name": name, "baseUrl": "http://server:8001/v1", "secretName": "key"} for name in ("good", "bad", "hangs")
    ]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}}
    await cluster.client.create(cluster.folder("secrets"), secret, Body)
    await create(cluster, "inferencetests", "InferenceTest", "t", environmentName="letters", models=models, steps=2)

    async def look() -> tuple[bool, list[Body]]:
        found = await pods_of(cluster, "inference-test")
        running = [pod for pod in found if pod["status"].get("phase") == "Running"]
        return len(running) == 3, found

    pods = sorted(await eventually("all models tried at once", look), key=lambda pod: pod["metadata"]["name"])
    assert all("secretKeyRef" in str(pod["spec"]["containers"][0]["env"]) for pod in pods)
    good = {"stepsTested": 2, "completions": 32, "correct": 16, "stepsWithCorrect": 2}
    await kubelet.fail(pods[0], exit_code=0, message=json.dumps({"reason": "Finished", "message": "2", "trial": good}))
    bad = {"stepsTested": 2, "completions": 32}
    await kubelet.fail(pods[1], exit_code=0, message=json.dumps({"reason": "Finished", "message": "2", "trial": bad}))
    late = {"reason": "EnvironmentFailed", "message": "the deadline passed", "trial": {"output": "no answer"}}
    await kubelet.fail(pods[2], message=json.dumps(late))
    done = await until(
        cluster, "inferencetests", "t", "finished", lambda t: t["status"]["phase"] in ("Completed", "Failed")
    )
    status = done["status"]
    assert status["phase"] == "Completed"
    assert status["summary"] == {
        "requested": 3,
        "tested": 2,
        "succeeded": 2,
        "bestModel": "good",
        "averageAccuracy": 0.25,
        "environmentWorks": True,
    }
    assert [model["phase"] for model in status["models"]] == ["Completed", "Completed", "Failed"]
    assert status["models"][0]["accuracy"] == 0.5
    assert status["models"][0]["stepSuccessRate"] == 1
    assert status["models"][2]["error"] == "The deadline passed.\nno answer"
    await cluster.patch("inferencetests", "t", {"spec": {"ttlSecondsAfterFinished": 0}})
    await cluster.until_gone("inferencetests", "t")


async def test_an_inference_test_requires_exactly_one_environment(cluster: ClusterAccess) -> None:
    with pytest.raises(Invalid, match="entry is missing: name what to test with environmentName"):
        await create(cluster, "inferencetests", "InferenceTest", "t", steps=2)
    with pytest.raises(Invalid, match="not both"):
        await create(cluster, "inferencetests", "InferenceTest", "t", environmentName="a", entry="letters")
    await create(cluster, "inferencetests", "InferenceTest", "t", entry="letters")
    with pytest.raises(Invalid, match="steps is immutable"):
        await cluster.patch("inferencetests", "t", {"spec": {"steps": 7}})
