"""Inference replicas: what their pods have, who reaches them, and whom they reach."""

from typing import Any

import pytest

from clotho.render import objects, pods
from clotho.render.config import run_config
from unit.render.cases import CASES, SETTINGS, run_of

Body = dict[str, Any]
HOST = "demo-0123abcd.team.svc.cluster.local"


def spec(replicas: int = 2, *, trainer: Body | None = None, **inference: Any) -> Body:
    return CASES["smallest"] | {"inference": {"replicas": replicas, **inference}, "trainer": trainer or {}}


def replica(index: int = 0, **given: Any) -> Body:
    return pods.inference_pod(run_of(spec(**given)), index, SETTINGS, restarts=0)


def component(rule: Body, direction: str) -> str:
    (peer,) = rule[direction]
    return str(peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"])


def ports(rule: Body) -> list[int]:
    return [port["port"] for port in rule["ports"]]


def test_every_replica_has_a_name_that_environments_find_in_their_config() -> None:
    pod = replica(1)
    assert (pod["metadata"]["name"], pod["spec"]["hostname"]) == ("demo-0123abcd-inference-1", "inference-1")
    endpoints = run_config(run_of(spec()), "cluster.local").endpoints
    urls = (f"http://inference-0.{HOST}:8001", f"http://inference-1.{HOST}:8001")
    assert endpoints.inference_replicas == urls
    assert endpoints.policy_urls == (f"http://trainer.{HOST}:8001", *urls)
    assert endpoints.policy == f"http://trainer.{HOST}:8005"


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ({}, 1),
        ({"trainer": {"gpus": 8}}, 1),
        ({"trainer": {"gpus": 0}}, 0),
        ({"gpus": 0}, 0),
        ({"trainer": {"gpus": 0}, "gpus": 1}, 1),
        ({"engine": "vllm", "vllm": {"tensorParallel": 4}}, 4),
    ],
)
def test_gpus_of_a_replica(given: Body, gpus: int) -> None:
    limits = replica(**given)["spec"]["containers"][0]["resources"].get("limits", {})
    assert limits.get("nvidia.com/gpu", 0) == gpus


def test_only_environments_reach_a_replica_and_only_replicas_reach_the_policy() -> None:
    run = run_of(spec())
    health, requests = objects.inference_policy(run)["spec"]["ingress"]
    assert ("from" in health, ports(health)) == (False, [8002])
    assert (component(requests, "from"), ports(requests)) == ("environment", [8001])
    everybody, _, policy = objects.trainer_policy(run)["spec"]["ingress"]
    assert (ports(everybody), component(policy, "from"), ports(policy)) == ([8002, 8001], "inference", [8005])
    _, _, to_replicas, _ = objects.network_policy(run)["spec"]["egress"]
    assert (component(to_replicas, "to"), ports(to_replicas)) == ("inference", [8001])


def test_a_run_without_replicas_opens_nothing_for_them() -> None:
    run = run_of(spec(0))
    assert "inference" not in str(objects.network_policy(run)["spec"])
    assert "8005" not in str(objects.trainer_policy(run)["spec"])


def test_a_replica_has_no_claim_and_no_secret_of_the_training() -> None:
    pod = pods.inference_pod(run_of(CASES["replicas"]), 0, SETTINGS, restarts=0)
    assert not [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    names = {variable["name"] for variable in pod["spec"]["containers"][0]["env"]}
    assert ("HF_TOKEN" in names, "WANDB_API_KEY" in names) == (True, False)
