"""Inference replicas: pods that are scaled and replaced one by one, and whose loss never restarts the run."""

from typing import Any

import pytest

from clotho.api.status import ComponentStatus
from clotho.plan.model import RESTARTING, Create, Delete, ObjectKey
from unit.plan.run.world import World, minimal_spec, running_world

REPLICAS = ["inference-0", "inference-1"]


def replica_world(**changes: Any) -> World:
    return running_world(**{"inference": {"replicas": 2}, **changes})


def inference(world: World) -> ComponentStatus:
    assert world.now_status.components
    assert world.now_status.components.inference
    return world.now_status.components.inference


def short(name: str) -> str:
    return name.removeprefix("demo-0123abcd-")


def replicas(world: World) -> list[str]:
    return sorted(short(name) for name in world.pods if short(name).startswith("inference"))


def others(world: World) -> dict[str, str]:
    """The uid of every other pod."""
    return {name: pod["metadata"]["uid"] for name, pod in world.pods.items() if not short(name).startswith("inference")}


def writes(world: World, kind: type[Create] | type[Delete]) -> list[str]:
    """One pass: the pods that it creates or deletes."""
    actions = world.reconcile().actions
    return [short(each.key.name) for each in actions if isinstance(each, kind) and each.key.kind == "Pod"]


def test_replicas_start_with_the_run_behind_their_network_policy() -> None:
    world = World(minimal_spec(inference={"replicas": 2}))
    actions = world.reconcile().actions
    created = [each.key for each in actions]
    assert [short(key.name) for key in created if key.kind == "Pod" and "inference" in key.name] == REPLICAS
    wall = ObjectKey("NetworkPolicy", "demo-0123abcd-inference")
    assert created.index(wall) < created.index(ObjectKey("Pod", "demo-0123abcd-inference-0"))


def test_a_run_trains_while_its_replicas_are_not_ready() -> None:
    world = World(minimal_spec(inference={"replicas": 2}))
    world.settle()
    for name in list(world.pods):
        world.start_pod(name, ready="inference" not in name)
    world.settle()
    assert world.phase == "Running"
    assert (inference(world).state, inference(world).ready, inference(world).replicas) == ("Starting", 0, 2)
    ready = world.now_status.condition("InferenceReady")
    assert ready
    assert (ready.status, ready.message) == ("False", "0 of 2 pods are ready")
    whole = world.now_status.condition("Ready")
    assert whole
    assert (whole.status, whole.message) == ("False", "Waiting for inference (0 of 2) to become ready.")
    world.start_all()
    world.settle()
    assert inference(world).ready == 2
    assert world.now_status.condition("Reconciling") is None


def test_a_run_whose_ranks_do_not_generate_waits_for_its_replicas() -> None:
    world = World(minimal_spec(inference={"replicas": 2}, trainer={"gpus": 2, "sharding": "fsdp"}))
    world.settle()
    for name in list(world.pods):
        world.start_pod(name, ready="inference" not in name)
    world.settle()
    assert (world.phase, world.now_status.message) == ("Starting", "Waiting for inference (0 of 2) to become ready.")
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    world.advance(60)
    for index in range(2):
        world.end_pod(world.named("inference", index), 1)
    world.settle()
    assert world.phase == "Starting", "nothing generates"


def test_a_replica_that_fails_is_replaced_alone_and_counted() -> None:
    world = replica_world()
    before = others(world)
    world.end_pod(world.named("inference", 1), 137, container_reason="OOMKilled")
    assert world.reconcile().actions == (), "first the record"
    assert (inference(world).restarts, inference(world).failures, world.now_status.restarts) == (1, 1, 1)
    last = inference(world).last_exit
    assert last
    assert last.message.startswith("Inference replica 1 ran out of memory: OOMKilled")
    assert world.phase == "Running"
    for _ in range(3):
        world.settle()
        world.advance(30)
    assert (replicas(world), others(world)) == (REPLICAS, before)
    world.start_all()
    world.settle()
    assert (world.phase, inference(world).ready, world.now_status.attempt) == ("Running", 2, 1)
    assert world.events.count(RESTARTING) == 1


def test_a_replica_that_somebody_deleted_is_made_again_at_once() -> None:
    world = replica_world()
    before = others(world)
    del world.pods[world.named("inference", 0)]
    assert writes(world, Create) == ["inference-0"]
    world.settle()
    assert (others(world), world.phase, inference(world).restarts) == (before, "Running", 1)


def test_the_number_follows_the_spec_while_the_run_trains() -> None:
    world = running_world()
    before = others(world)
    assert world.now_status.components
    assert world.now_status.components.inference is None
    assert world.now_status.condition("InferenceReady") is None
    for wanted, created, deleted in ((2, REPLICAS, []), (1, [], ["inference-1"]), (0, [], ["inference-0"])):
        world.change_spec(inference={"replicas": wanted})
        actions = world.reconcile().actions
        pods = [each for each in actions if each.key.kind == "Pod"]
        assert [short(each.key.name) for each in pods if isinstance(each, Create)] == created
        assert [short(each.key.name) for each in pods if isinstance(each, Delete)] == deleted
        world.start_all()
        world.settle()
        world.terminate("inference")
        world.settle()
        assert (len(replicas(world)), world.phase, world.now_status.restarts) == (wanted, "Running", 0)
    assert others(world) == before
    assert world.now_status.components.inference is None


def test_the_config_of_live_pods_follows_the_number() -> None:
    world = running_world()
    world.change_spec(inference={"replicas": 1})
    written = [each.key.kind for each in world.reconcile().actions]
    assert written.count("Secret") == 1
    assert written.index("Secret") < written.index("Pod")


def test_a_spent_budget_fails_the_run_as_with_environments() -> None:
    world = replica_world(restarts={"limit": 0})
    world.end_pod(world.named("inference"), 1, reason="InternalError", message="no memory for the cache")
    world.settle()
    assert world.phase == "Failed"
    assert "Inference replica 0 failed (InternalError): no memory for the cache" in world.now_status.message


def test_replicas_end_after_the_environments_and_before_the_trainer() -> None:
    world = replica_world()
    world.change_spec(stop=True)
    order: list[str] = []
    while world.phase != "Stopped":
        order += [name.split("-")[0] for name in writes(world, Delete)]
        world.terminate()
    assert list(dict.fromkeys(order)) == ["env", "inference", "trainer", "api"]


def test_no_replica_is_replaced_once_the_last_step_is_done() -> None:
    world = replica_world()
    world.make_progress(100)
    del world.pods[world.named("inference", 0)]
    world.settle()
    assert replicas(world) == ["inference-1"]


@pytest.mark.parametrize(("trainer", "gpus"), [({"gpus": 0}, None), ({"gpus": 8}, 1)])
def test_a_replica_without_a_node_is_named_with_what_it_needs(trainer: dict[str, int], gpus: int | None) -> None:
    world = replica_world(trainer=trainer)
    pod = world.pods[world.named("inference", 1)]
    limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
    assert limits.get("nvidia.com/gpu") == gpus
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    pod["spec"].pop("nodeName")
    pod["status"] = {"phase": "Pending", "conditions": [scheduled]}
    world.settle()
    node = "a node with 1 nvidia.com/gpu" if gpus else "a node for inference replica 1"
    assert world.now_status.message == f"Waiting for {node}: 0/3 nodes are available."
    assert world.phase == "Running"
