"""Objects that were changed by hand are applied again; what the server fills in is no drift."""

from typing import Any

import msgspec
import pytest

from clotho.plan.model import Apply, Create, Kind, ObjectKey
from clotho.render.objects import TOKEN_KEYS
from unit.plan.run.world import World, minimal_spec, running_world

SERVER_DEFAULTS = {"clusterIPs": ["None"], "type": "ClusterIP", "sessionAffinity": "None", "ipFamilies": ["IPv4"]}


def edited(kind: Kind, labels: dict[str, str] | None = None, **spec: Any) -> tuple[World, ObjectKey]:
    world = running_world(trainer={"disruptionBudget": True})
    key = next(key for key in world.objects if key.kind == kind)
    seen = world.objects[key]
    world.objects[key] = msgspec.structs.replace(
        seen, spec={**seen.spec, **spec}, labels=seen.labels if labels is None else labels
    )
    return world, key


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("NetworkPolicy", {"egress": [{}]}),
        ("NetworkPolicy", {"egress": None}),
        ("NetworkPolicy", {"ingress": []}),
        ("NetworkPolicy", {"policyTypes": ["Ingress"]}),
        ("NetworkPolicy", {"podSelector": {}}),
        ("Service", {"selector": {"app": "another"}}),
        ("Service", {"ports": []}),
        ("Service", {"externalIPs": ["203.0.113.7"]}),
        ("Service", {"sessionAffinity": "ClientIP"}),
        ("Service", {"ports": [{"name": "api-server", "port": 8000, "targetPort": 1, "protocol": "TCP"}]}),
        ("PodDisruptionBudget", {"minAvailable": 0}),
    ],
)
def test_hand_edit_of_a_rendered_field_is_undone(kind: Kind, spec: dict[str, Any]) -> None:
    world, key = edited(kind, **spec)
    (action,) = world.plan().actions
    assert isinstance(action, Apply)
    assert action.key == key
    world.settle()
    assert world.plan().actions == ()


def test_policies_of_inference_replicas_follow_the_spec_when_there_are_none_any_more() -> None:
    """They are deleted with the run only; until then they let nothing in that the spec does not name."""
    world = running_world(inference={"replicas": 1})
    trainer = next(key for key in world.objects if key.kind == "NetworkPolicy" and key.name.endswith("-trainer"))
    before = world.objects[trainer].spec["ingress"]
    world.change_spec(inference={"replicas": 0})
    world.settle()
    after = world.objects[trainer].spec["ingress"]
    assert [rule for rule in before if rule not in after], "replicas are let in no longer"
    world.objects[trainer] = msgspec.structs.replace(world.objects[trainer], spec={"ingress": [{}]})
    world.settle()
    assert world.objects[trainer].spec["ingress"] == after


def test_disruption_budget_that_is_switched_off_lets_the_trainer_be_evicted() -> None:
    world = World(minimal_spec(trainer={"disruptionBudget": True}))
    world.reconcile()
    key = next(key for key in world.objects if key.kind == "PodDisruptionBudget")
    assert world.objects[key].spec["minAvailable"] == 1
    world.change_spec(trainer={"disruptionBudget": False})
    world.settle()
    assert world.objects[key].spec["minAvailable"] == 0


def test_removed_label_is_put_back() -> None:
    world, key = edited("Service", labels={})
    assert [action.key for action in world.plan().actions] == [key]


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "PodDisruptionBudget", "Secret", "PersistentVolumeClaim"])
def test_removed_owner_is_put_back(kind: Kind) -> None:
    """Without it, the object outlives its run."""
    world = running_world(trainer={"disruptionBudget": True}, storage={"retain": False})
    key = next(key for key in world.objects if key.kind == kind)
    world.objects[key] = msgspec.structs.replace(world.objects[key], owners=())
    (action,) = world.plan().actions
    assert (action.key, action.manifest["metadata"]["ownerReferences"][0]["uid"]) == (key, world.run.metadata.uid)  # type: ignore[union-attr]
    world.settle()
    assert world.plan().actions == ()


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "PersistentVolumeClaim"])
@pytest.mark.parametrize("change", [{"api_version": "another/v1"}, {"name": "another"}, {"controller": False}])
def test_edited_owner_is_put_back(kind: Kind, change: dict[str, Any]) -> None:
    """Garbage collection does not follow a reference with a wrong field."""
    world = running_world(storage={"retain": False})
    key = next(key for key in world.objects if key.kind == kind)
    (owner,) = world.objects[key].owners
    wrong = msgspec.structs.replace(owner, **change)
    world.objects[key] = msgspec.structs.replace(world.objects[key], owners=(wrong,))
    assert [action.key for action in world.plan().actions] == [key]
    world.settle()
    assert world.objects[key].owners == (owner,)


def test_edited_owner_of_a_pod_is_put_back_beside_other_owners() -> None:
    world = running_world()
    pod = world.pods[next(iter(world.pods))]
    (owner,) = pod["metadata"]["ownerReferences"]
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": "another"}
    pod["metadata"]["ownerReferences"] = [{**owner, "apiVersion": "another/v1"}, other]
    world.settle()
    assert pod["metadata"]["ownerReferences"] == [other, owner]


def test_retained_claim_needs_no_owner() -> None:
    world = running_world()
    claim = next(key for key in world.objects if key.name.endswith("-trainer") and "Claim" in key.kind)
    assert world.objects[claim].owners == ()
    assert world.plan().actions == ()


def test_edited_config_is_written_again_whatever_its_annotations_are() -> None:
    world = running_world()
    key = next(key for key in world.objects if key.kind == "Secret")
    world.objects[key] = msgspec.structs.replace(world.objects[key], contents="edited")
    (action,) = world.plan().actions
    assert (action.key, type(action)) == (key, Apply)
    world.settle()
    assert world.phase == "Running"


def test_removed_token_is_made_again_and_pods_are_replaced_in_order() -> None:
    world = running_world()
    key = next(key for key in world.objects if key.kind == "Secret")
    old = {pod["metadata"]["uid"] for pod in world.pods.values()}
    world.objects[key] = msgspec.structs.replace(world.objects[key], has_tokens=False)
    (action,) = world.plan().actions
    assert (action.key, action.random_keys) == (key, TOKEN_KEYS)  # type: ignore[union-attr]
    ended = []
    for component in ("environment", "trainer", "api-server"):
        world.settle()
        ended += [component for pod in world.pods.values() if "deletionTimestamp" in pod["metadata"]]
        world.terminate(component)
    assert ended == ["environment", "environment", "trainer", "api-server"]
    world.settle()
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    assert not old & {pod["metadata"]["uid"] for pod in world.pods.values()}


LABELS_OF_PODS = [
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
    "clotho.dev/serving",
    "clotho.dev/run",
]


@pytest.mark.parametrize("label", LABELS_OF_PODS)
def test_removed_label_of_a_pod_is_put_back(label: str) -> None:
    """Policies and Services select by them."""
    world = running_world()
    name = world.named("trainer")
    uid = world.pods[name]["metadata"]["uid"]
    del world.pods[name]["metadata"]["labels"][label]
    (action,) = world.plan().actions
    assert (type(action), action.key) == (Create, ObjectKey("Pod", name))
    world.settle()
    assert world.pods[name]["metadata"]["uid"] == uid
    assert label in world.pods[name]["metadata"]["labels"]
    assert world.now_status.restarts == 0


@pytest.mark.parametrize("label", ["app.kubernetes.io/component", "clotho.dev/environment", "clotho.dev/index"])
@pytest.mark.parametrize("value", ["7", "trainer", "more"])
def test_edited_label_of_a_pod_is_put_back_without_replacing_the_pod(label: str, value: str) -> None:
    world = running_world()
    name = world.named("environment", 1)
    labels, uid = dict(world.pods[name]["metadata"]["labels"]), world.pods[name]["metadata"]["uid"]
    world.pods[name]["metadata"]["labels"][label] = value
    (action,) = world.plan().actions
    assert (type(action), action.key) == (Create, ObjectKey("Pod", name))
    world.settle()
    assert world.pods[name]["metadata"]["uid"] == uid
    assert world.pods[name]["metadata"]["labels"] == labels
    assert world.now_status.restarts == 0


def test_removed_owner_of_a_pod_is_put_back() -> None:
    world = running_world()
    name = world.named("environment", 1)
    del world.pods[name]["metadata"]["ownerReferences"]
    world.settle()
    assert [owner["uid"] for owner in world.pods[name]["metadata"]["ownerReferences"]] == [world.run.metadata.uid]


def test_failed_pod_without_its_component_label_is_replaced() -> None:
    world = running_world(restarts={"backoffSeconds": 0})
    name = world.named("trainer")
    uid = world.pods[name]["metadata"]["uid"]
    world.end_pod(name)
    del world.pods[name]["metadata"]["labels"]["app.kubernetes.io/component"]
    world.settle()
    assert world.pods[name]["metadata"]["uid"] != uid
    assert world.now_status.restarts == 1


@pytest.mark.parametrize(
    ("kind", "spec"),
    [("Service", SERVER_DEFAULTS), ("PodDisruptionBudget", {"unhealthyPodEvictionPolicy": "AlwaysAllow"})],
)
def test_other_fields_are_left_alone(kind: Kind, spec: dict[str, Any]) -> None:
    world, _ = edited(kind, **spec)
    assert world.plan().actions == ()


def test_ports_that_others_add_to_a_service_are_left_alone() -> None:
    world, key = edited("Service")
    seen = world.objects[key]
    ports = [{**port, "appProtocol": "http"} for port in seen.spec["ports"]] + [{"port": 9, "protocol": "TCP"}]
    world.objects[key] = msgspec.structs.replace(seen, spec={**seen.spec, "ports": ports})
    assert world.plan().actions == ()
