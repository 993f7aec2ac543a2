"""Templates are checked by the API server before any pod is made, and what it refuses is in Accepted."""

from typing import Any

import msgspec

from clotho.api.status import TrainingRunStatus
from clotho.plan.model import Create, Plan, Refusal, Validate
from clotho.plan.run.plan import plan
from unit.plan.run.world import World, minimal_spec, running_world

TEMPLATE = {"spec": {"containers": [{"name": "main", "resources": {"limts": {"memory": "1Gi"}}}]}}
UNKNOWN = 'strict decoding error: unknown field "spec.containers[0].resources.limts"'


def planned(world: World, **seen: Any) -> Plan[TrainingRunStatus]:
    return plan(world.run, msgspec.structs.replace(world.observed, **seen), world.now, world.settings)


def test_pods_with_a_template_are_validated_before_anything_is_made() -> None:
    world = World(minimal_spec(trainer={"template": TEMPLATE}))
    (check,) = planned(world, is_unchecked=True).actions
    assert isinstance(check, Validate)
    assert check.key.name.endswith("-trainer")
    made = planned(world, is_unchecked=False).actions
    assert any(isinstance(action, Create) and action.key == check.key for action in made)


def test_a_field_that_the_api_server_does_not_know_is_not_accepted() -> None:
    world = World(minimal_spec(trainer={"template": TEMPLATE}))
    (check,) = planned(world, is_unchecked=True).actions
    refused = {check.key: Refusal(message=UNKNOWN, is_permanent=True)}
    wanted = planned(world, is_unchecked=True, refused=refused)
    assert wanted.actions == ()
    assert wanted.status is not None
    accepted = wanted.status.condition("Accepted")
    assert accepted is not None
    assert (accepted.status, accepted.message) == ("False", f"The spec is not valid: trainer.template: {UNKNOWN}.")


def test_a_quota_is_waited_for() -> None:
    world = World(minimal_spec(trainer={"template": TEMPLATE}))
    (check,) = planned(world, is_unchecked=True).actions
    refused = {check.key: Refusal(message="exceeded quota", is_permanent=False)}
    assert [type(each) for each in planned(world, is_unchecked=True, refused=refused).actions] == [Validate]


def test_runs_without_templates_and_runs_with_pods_are_not_checked() -> None:
    plain = planned(World(minimal_spec()), is_unchecked=True)
    assert not any(isinstance(action, Validate) for action in plain.actions)
    live = running_world(trainer={"template": {"spec": {"nodeSelector": {"a": "b"}}}})
    assert planned(live, is_unchecked=True).actions == ()
