"""Until the trainer has started, every field of a run may change: nothing of the earlier spec is kept."""

from clotho.plan.model import Delete, ObjectKey
from unit.plan.run.test_catalogue import entry
from unit.plan.run.test_policies import policy
from unit.plan.run.world import World, minimal_spec

CLAIM = ObjectKey("PersistentVolumeClaim", "demo-0123abcd-trainer")


def images(world: World, component: str) -> set[str]:
    found = [world.pods[world.named(component)]]
    return {container["image"] for pod in found for container in pod["spec"]["containers"]}


def with_template(image: str) -> dict[str, object]:
    return {"trainer": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}


def lose_the_trainer(world: World) -> None:
    """Its pod was refused, as by a quota: the others exist, and the status knows of no trainer."""
    del world.pods[world.named("trainer")]


def test_a_refused_run_starts_once_it_is_corrected() -> None:
    world = World(minimal_spec(environments=[{"name": "leters"}]))
    world.settle()
    assert (world.phase, world.pods) == ("Pending", {})
    world.change_spec(environments=[{"name": "letters"}], model={"name": "other"})
    world.settle()
    assert world.components() == ["api-server", "environment", "trainer"]
    assert world.now_status.attempt == 1


def test_pods_of_the_earlier_spec_are_replaced() -> None:
    """The change came after the pods were made and before the status knew of them."""
    world = World(minimal_spec(**with_template("first:1")))
    world.carry_out(world.plan(), writes=100)
    world.status = {"observedGeneration": 1, "phase": "Pending"}
    assert images(world, "trainer") == {"first:1"}
    world.change_spec(**with_template("second:1"))
    world.reconcile()
    assert world.now_status.attempt == 0, "the spec is not fixed by a pod of an earlier one"
    world.settle()
    assert images(world, "trainer") == {"second:1"}
    assert world.now_status.attempt == 1
    assert all(pod["metadata"]["annotations"]["clotho.dev/generation"] == "2" for pod in world.pods.values())


def test_a_started_run_keeps_its_pods() -> None:
    world = World(minimal_spec())
    world.settle()
    before = {pod["metadata"]["uid"] for pod in world.pods.values()}
    world.change_spec(deadlineSeconds=60)
    world.settle()
    assert {pod["metadata"]["uid"] for pod in world.pods.values()} == before


def test_an_environment_that_was_removed_leaves_no_pod() -> None:
    world = World(minimal_spec())
    world.carry_out(world.plan(), writes=100)
    world.status = {"observedGeneration": -1, "phase": "Pending"}
    world.change_spec(environments=[{"name": "other", "entry": "letters"}])
    world.settle()
    assert {name for name in world.pods if "-env-" in name} == {"demo-0123abcd-env-other-0"}


def test_environments_are_looked_up_again() -> None:
    world = World(minimal_spec(environments=[{"name": "letters", "environmentName": "shelf"}]))
    world.environments = {"shelf": entry(image="shelf:1"), "rack": entry(image="rack:1")}
    world.reconcile()
    assert [each.image for each in world.now_status.resolved] == ["shelf:1"]
    world.change_spec(environments=[{"name": "letters", "environmentName": "rack"}])
    world.settle()
    assert [each.image for each in world.now_status.resolved] == ["rack:1"]
    assert images(world, "environment") == {"rack:1"}


def test_present_policies_apply_to_a_changed_run() -> None:
    world = World(minimal_spec())
    world.carry_out(world.plan(), writes=100)
    world.status = {"observedGeneration": -1, "phase": "Pending"}
    lose_the_trainer(world)
    world.policies = (policy(limits={"steps": 50}),)
    world.change_spec(training={"steps": 60})
    for _ in range(3):
        world.reconcile()
        assert "60 is more than 50" in world.now_status.message
    assert "trainer" not in world.components()


def test_an_empty_claim_of_another_size_is_made_again() -> None:
    world = World(minimal_spec())
    world.carry_out(world.plan(), writes=100)
    world.status = {"observedGeneration": -1, "phase": "Pending"}
    lose_the_trainer(world)
    first = world.objects[CLAIM].uid
    world.change_spec(storage={"size": "7Gi"})
    world.settle()
    assert world.objects[CLAIM].uid != first
    assert world.objects[CLAIM].spec["resources"]["requests"]["storage"] == "7Gi"


def test_the_claim_of_a_started_run_is_never_deleted() -> None:
    world = World(minimal_spec())
    world.settle()
    world.change_spec(storage={"size": "7Gi"})  # past the API server
    world.pods.clear()
    world.status["phase"] = "Pending"
    deleted = [action for action in world.plan().actions if isinstance(action, Delete)]
    assert [action.key for action in deleted if action.key.kind == "PersistentVolumeClaim"] == []


def test_pods_of_an_earlier_spec_are_deleted_while_the_run_waits() -> None:
    world = World(minimal_spec())
    world.policies = (policy(limits={"activeRuns": 1}),)
    world.reconcile()
    world.reconcile()
    assert world.pods
    world.runs_ahead = 1
    world.change_spec(training={"steps": 60})
    world.reconcile()
    world.terminate()
    assert world.now_status.queued_since
    assert not world.pods
