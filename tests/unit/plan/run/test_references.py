"""What a run names and does not exist is named with its kind, before any pod holds a GPU."""

from clotho.plan.model import Reference
from clotho.plan.run.references import references
from unit.plan.run.test_policies import policy
from unit.plan.run.world import World, minimal_spec
from unit.render.cases import CASES, run_of

SECRET = Reference("Secret", "wandb", "tracking.wandb.secretName")
CLAIM = Reference("PersistentVolumeClaim", "models", "model.claimName")


def test_every_object_that_a_run_names_is_looked_up() -> None:
    spec = CASES["smallest"] | {
        "model": {"name": "m", "claimName": "models", "secretName": "hub"},
        "storage": {"claimName": "earlier", "storageClassName": "fast"},
        "trainer": {"tinkerSecretName": "tinker"},
        "tracking": {"wandb": {"project": "p", "secretName": "wandb"}},
        "environments": [{"name": "letters", "configMapName": "code", "secretName": "keys", "cacheClaimName": "hub"}],
    }
    assert {(each.kind, each.name, each.field) for each in references(run_of(spec))} == {
        ("PersistentVolumeClaim", "earlier", "storage.claimName"),
        ("PersistentVolumeClaim", "models", "model.claimName"),
        ("StorageClass", "fast", "storage.storageClassName"),
        ("PersistentVolumeClaim", "hub", "environments.letters.cacheClaimName"),
        ("Secret", "hub", "model.secretName"),
        ("Secret", "tinker", "trainer.tinkerSecretName"),
        ("Secret", "wandb", "tracking.wandb.secretName"),
        ("ConfigMap", "code", "environments.letters.configMapName"),
        ("Secret", "keys", "environments.letters.secretName"),
    }
    assert {each.field for each in references(run_of(CASES["inline"]))} == {
        "inline.dataset.configMapName",
        "inline.code.claimName",
    }
    assert references(run_of(CASES["smallest"])) == ()


def test_no_pod_is_made_until_everything_exists() -> None:
    world = World(minimal_spec())
    world.missing = (SECRET, CLAIM)
    world.settle()
    assert (world.phase, world.pods) == ("Pending", {})
    assert world.now_status.message == (
        "Waiting for Secret wandb (tracking.wandb.secretName), PersistentVolumeClaim models (model.claimName): "
        "they do not exist in this namespace."
    )
    assert world.plan().wake_at is not None, "none of them is watched"
    world.missing = ()
    world.settle()
    assert world.pods


def test_a_missing_storage_class_is_named() -> None:
    world = World(minimal_spec())
    world.missing = (Reference("StorageClass", "fast", "storage.storageClassName"),)
    world.settle()
    assert world.now_status.message == (
        "Waiting for StorageClass fast (storage.storageClassName): it does not exist in this cluster."
    )


def test_an_unknown_entry_is_refused_with_the_nearest_one() -> None:
    world = World(minimal_spec(environments=[{"name": "mine", "entry": "leters"}]))
    world.settle()
    assert (world.phase, world.pods) == ("Pending", {})
    assert "environments.mine.entry: leters is not an entry; did you mean letters?" in world.now_status.message


def test_the_environment_of_that_name_is_offered() -> None:
    world = World(minimal_spec(environments=[{"name": "gsm8k"}]))
    world.catalogue = ("gsm8k",)
    world.settle()
    assert "to use the Environment of that name, set environmentName: gsm8k" in world.now_status.message
    world.change_spec(environments=[{"name": "x", "environmentName": "gsm8"}])
    world.settle()
    assert world.now_status.message == (
        "Waiting for environment gsm8: the Environment does not exist; did you mean gsm8k?"
    )


def test_entries_of_other_images_are_not_judged() -> None:
    for more in ({"image": "ours:1"}, {"template": {"spec": {"containers": [{"name": "main", "image": "ours:1"}]}}}):
        world = World(minimal_spec(environments=[{"name": "mine", **more}]))
        world.settle()
        assert world.pods


def test_a_run_with_something_missing_takes_no_place_in_the_queue() -> None:
    world = World(minimal_spec())
    world.policies = (policy(limits={"activeRuns": 1}),)
    world.missing = (SECRET,)
    world.settle()
    assert world.now_status.message == (
        "Waiting for Secret wandb (tracking.wandb.secretName): it does not exist in this namespace."
    )
    assert world.now_status.queued_since is None
    assert world.now_status.policy is None
