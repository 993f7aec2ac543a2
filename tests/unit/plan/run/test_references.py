"""What a run names and does not exist is named with its kind, before any pod holds a GPU."""

import pytest

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
        "inline.dataset.path",
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


@pytest.mark.parametrize(
    ("entry", "file"),
    [
        ("/environment/mine.py", "mine.py"),
        ("/environment/mine.py:Mine", "mine.py"),
        ("atropos:/environment/mine.py", "mine.py"),
        ("/opt/mine.py", None),
        ("mine:Mine", None),
    ],
)
def test_files_of_config_maps_are_looked_up(entry: str, file: str | None) -> None:
    environments = [{"name": "mine", "entry": entry, "configMapName": "code"}]
    found = [each for each in references(run_of(CASES["smallest"] | {"environments": environments})) if each.file]
    expected = Reference("ConfigMap", "code", "environments.mine.entry", file) if file else None
    assert found == ([expected] if expected else [])


def test_a_missing_file_is_named_with_the_nearest_one() -> None:
    world = World(minimal_spec())
    world.missing = (Reference("ConfigMap", "code", "environments.mine.entry", "min.py", ("mine.py", "data.json")),)
    world.settle()
    assert (world.phase, world.pods) == ("Pending", {})
    assert world.now_status.message == (
        "Waiting for file min.py of ConfigMap code (environments.mine.entry): it does not exist in this namespace; "
        "did you mean mine.py?"
    )


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


MISSPELT = {"name": "gym", "entry": "reasoning-gym:chain_sun"}


def test_a_misspelt_reasoning_gym_task_is_refused_with_the_nearest_one() -> None:
    for more in ({}, {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}):
        world = World(minimal_spec(environments=[MISSPELT | more]))
        world.settle()
        assert (world.phase, world.pods) == ("Pending", {})
        problem = "environments.gym.entry: reasoning-gym has no task 'chain_sun'; did you mean chain_sum"
        assert problem in world.now_status.message
        world.change_spec(environments=[MISSPELT | more | {"entry": "reasoning-gym:chain_sum"}])
        world.settle()
        assert world.pods


def test_a_task_of_another_reasoning_gym_is_not_judged() -> None:
    pinned = f"reasoning-gym==9.9.9 --hash=sha256:{'0' * 64}"
    egress = [{"cidr": "203.0.113.0/24"}]
    for more in ({"image": "ours:1"}, {"requirements": [pinned], "egress": egress}):
        world = World(minimal_spec(environments=[MISSPELT | more]))
        world.settle()
        assert world.pods


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
    command = {"template": {"spec": {"containers": [{"name": "main", "command": ["python", "mine.py"]}]}}}
    for more in ({"image": "ours:1"}, command):
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
