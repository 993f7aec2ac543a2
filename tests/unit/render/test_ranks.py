"""What the pods of a trainer with several ranks have of their own, and who reaches them."""

from typing import Any

import pytest

from clotho.api.names import TRAINER
from clotho.render import objects, pods
from clotho.render.config import run_config
from clotho.render.names import pod_name
from unit.render.cases import CASES, SETTINGS, run_of

Body = dict[str, Any]
HOST = "demo-0123abcd.team.svc.cluster.local"


def spec(**trainer: int) -> Body:
    return CASES["smallest"] | {"trainer": trainer}


def trainer_pod(index: int = 0, **trainer: int) -> Body:
    return pods.trainer_pod(run_of(spec(**trainer)), SETTINGS, restarts=0, attempt=1, index=index)


def variables(pod: Body) -> Body:
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"] if "value" in each}


def test_every_pod_finds_the_others_through_the_first() -> None:
    pod = trainer_pod(index=1, replicas=2, gpus=8)
    assert (pod["metadata"]["name"], pod["spec"]["hostname"]) == ("demo-0123abcd-trainer-1", "trainer-1")
    given = {name: value for name, value in variables(pod).items() if name.startswith(("PET_", "GLOO_", "NCCL_"))}
    assert given == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": f"trainer.{HOST}",
        "PET_MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }


def test_the_config_names_every_ranks_inference() -> None:
    endpoints = run_config(run_of(spec(replicas=2, gpus=2)), "cluster.local").endpoints
    assert endpoints.inference == f"http://trainer.{HOST}:8001"
    assert endpoints.inference_ranks == tuple(
        f"http://{host}.{HOST}:{port}" for host in ("trainer", "trainer-1") for port in (8001, 8101)
    )
    assert run_config(run_of(spec(gpus=1)), "cluster.local").endpoints.inference_ranks == ()


@pytest.mark.parametrize(
    ("inference", "served_by"),
    [
        ({"replicas": 2}, ["inference-0", "inference-1"]),
        ({"engine": "vllm", "vllm": {"mode": "server", "url": "http://v", "adapterPath": "/a"}}, ["trainer"]),
    ],
)
def test_a_sharded_policy_is_served_elsewhere(inference: Body, served_by: list[str]) -> None:
    sharded = CASES["smallest"] | {"trainer": {"replicas": 2, "sharding": "fsdp"}, "inference": inference}
    config = run_config(run_of(sharded), "cluster.local")
    assert config.sharding == "fsdp"
    assert config.endpoints.policy_urls == tuple(f"http://{host}.{HOST}:8001" for host in served_by)
    assert len(config.endpoints.rank_urls) == 2


def test_only_the_first_pod_has_the_claim() -> None:
    volumes = [
        {volume["name"]: volume for volume in trainer_pod(index, replicas=3, gpus=0)["spec"]["volumes"]}
        for index in range(3)
    ]
    assert volumes[0]["data"]["persistentVolumeClaim"] == {"claimName": "demo-0123abcd-trainer"}
    assert [each["data"].get("emptyDir") for each in volumes[1:]] == [{"sizeLimit": "50Gi"}] * 2


def test_requests_and_shared_memory_grow_with_the_gpus() -> None:
    for gpus, cpu, memory, shared in ((0, "250m", "1Gi", "1Gi"), (1, "2", "16Gi", "8Gi"), (8, "16", "128Gi", "64Gi")):
        pod = trainer_pod(gpus=gpus)
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        (shm,) = [volume["emptyDir"]["sizeLimit"] for volume in pod["spec"]["volumes"] if volume["name"] == "shm"]
        assert (requests["cpu"], requests["memory"], shm) == (cpu, memory, shared)


def test_a_drain_waits_for_all_pods() -> None:
    assert objects.disruption_budget(run_of(spec(replicas=4, disruptionBudget=True)))["spec"]["minAvailable"] == 4


def test_only_the_runs_own_trainers_reach_the_ports_of_the_ranks() -> None:
    wall = objects.trainer_policy(run_of(spec(replicas=2, gpus=2)))["spec"]
    everybody, each_other = wall["ingress"]
    assert ("from" in everybody, [port["port"] for port in everybody["ports"]]) == (False, [8002, 8001, 8101])
    assert each_other == {"from": [{"podSelector": wall["podSelector"]}], "ports": [{"protocol": "TCP"}]}
    assert wall["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == TRAINER
    assert wall["policyTypes"] == ["Ingress"]


def test_environments_reach_the_inference_of_every_rank() -> None:
    policy = objects.network_policy(run_of(spec(gpus=3)))
    _, to_trainers, _ = policy["spec"]["egress"]
    assert [port["port"] for port in to_trainers["ports"]] == [8001, 8101, 8102]


@pytest.mark.parametrize("trainer", [{"gpus": 1}, {"gpus": 0}])
def test_a_single_rank_has_no_trace_of_others(trainer: Body) -> None:
    pod = trainer_pod(**trainer)
    assert not [name for name in variables(pod) if name.startswith(("PET_", "GLOO_", "NCCL_"))]
    assert "clotho.dev/index" not in pod["metadata"]["labels"]
    assert pod["metadata"]["name"] == pod_name(run_of(spec(**trainer)).metadata, TRAINER) == "demo-0123abcd-trainer"
