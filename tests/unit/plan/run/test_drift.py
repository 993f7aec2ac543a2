"""Objects that were changed by hand are applied again; what the server fills in is no drift."""

from typing import Any

import msgspec
import pytest

from clotho.plan.model import Apply, Kind, ObjectKey
from unit.plan.run.world import World, running_world

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


def test_removed_label_is_put_back() -> None:
    world, key = edited("Service", labels={})
    assert [action.key for action in world.plan().actions] == [key]


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
