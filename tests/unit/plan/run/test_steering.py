"""training.steps that was raised is sent to the running trainer until it reports the new number."""

from clotho.plan.model import SetSteps
from unit.plan.run.test_policies import policy
from unit.plan.run.world import World, running_world


def raised(configured: int) -> World:
    world = running_world()
    world.make_progress(5, configured_steps=configured)
    world.change_spec(training={"steps": 500})
    return world


def test_raised_steps_are_sent_until_the_trainer_reports_them() -> None:
    world = raised(100)
    pod = world.pods[world.named("trainer")]
    expected = SetSteps(pod_uid=pod["metadata"]["uid"], address=pod["status"]["podIP"], steps=500)
    assert world.reconcile().set_steps == expected
    assert world.reconcile().set_steps == expected
    world.make_progress(6, configured_steps=500)
    assert world.reconcile().set_steps is None


def test_a_trainer_that_reports_no_number_is_not_asked() -> None:
    assert raised(0).reconcile().set_steps is None


def test_steps_that_were_refused_are_not_sent() -> None:
    world = running_world()
    world.make_progress(5, configured_steps=100)
    world.policies = (policy(limits={"steps": 200}),)
    world.status["policy"] = {"names": ["team"], "limits": {"steps": 200}}
    world.change_spec(training={"steps": 500})
    wanted = world.reconcile()
    assert wanted.set_steps is None
    assert "is more than 200" in world.now_status.message


def test_a_trainer_that_is_going_is_not_asked() -> None:
    world = raised(100)
    world.change_spec(stop=True)
    assert world.reconcile().set_steps is None
