"""TrainingPolicies in the life of a run: refused, filled in, queued, and fixed once it has started."""

import base64
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from clotho.api import inference_tests
from clotho.api.environment import Environment
from clotho.api.environment import parse as parse_environment
from clotho.api.status import PolicyInForce, TrainingRunStatus
from clotho.api.training_policy import AnyPolicy, parse
from clotho.api.training_run import TrainingRun
from clotho.plan.environments import EnvironmentSeen, plan_environment
from clotho.plan.inference_tests import TestSeen, plan_test
from clotho.plan.model import Create
from clotho.plan.run.queueing import is_admitted, is_queueing, runs_ahead
from clotho.plan.settings import PlanSettings
from clotho_contract.config import parse as parse_config
from unit.plan.run.world import START, World, minimal_spec, running_world


def policy(name: str = "team", **spec: Any) -> AnyPolicy:
    return parse({"metadata": {"name": name}, "spec": spec})


def governed(*policies: AnyPolicy, **changes: Any) -> World:
    world = World(minimal_spec(**changes))
    world.policies = policies
    return world


def accepted(world: World) -> tuple[str, str]:
    condition = world.now_status.condition("Accepted")
    assert condition is not None
    return condition.status, condition.message


def test_every_policy_violation_of_a_run_is_reported_at_once() -> None:
    world = governed(policy(locked={"training": {"seed": 1}}, limits={"gpus": 0}), training={"steps": 100, "seed": 2})
    world.settle()
    truth, message = accepted(world)
    assert truth == "False"
    for words in ("training.seed: 2 is not allowed, it is locked to 1", "trainer.gpus: 1 is more than 0"):
        assert words in message
    assert world.pods == {}
    assert world.now_status.policy is None


PRIVILEGED = {"spec": {"containers": [{"name": "main", "securityContext": {"privileged": True}}]}}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"trainer": {"template": PRIVILEGED}}, "spec.trainer.template"),
        ({"apiServer": {"template": PRIVILEGED}}, "spec.apiServer.template"),
        (
            {"environments": [{"name": "letters", "replicas": 0, "template": PRIVILEGED}]},
            "spec.environments.letters.template",
        ),
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused_while_the_run_is_queued(changes: Any, where: str) -> None:
    world = governed(policy(limits={"activeRuns": 1}), **changes)
    world.runs_ahead = 1
    world.settle()
    truth, message = accepted(world)
    assert truth == "False"
    assert f"{where}: spec.containers[main].securityContext.privileged must not be set" in message


def test_policies_override_and_limit_what_an_environment_sets() -> None:
    asked = {"environments": [{"name": "letters", "environmentName": "shelf"}]}
    world = governed(policy(locked={"environmentConfig": {"level": 1}}, limits={"images": ["ours/*"]}), **asked)
    world.environments = {"shelf": catalogue_entry(config={"level": 2, "group_size": 8}, image="ours/x")}
    world.settle()
    assert accepted(world)[0] == "True"
    world = governed(policy(limits={"images": ["ours/*"]}), **asked)
    world.environments = {"shelf": catalogue_entry(image="theirs/x")}
    world.settle()
    assert "environments.letters.image: theirs/x is not among the images of TrainingPolicy team" in accepted(world)[1]


def catalogue_entry(**spec: Any) -> Environment:
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Described",
        "message": "",
        "lastTransitionTime": "2026-11-01T12:00:00Z",
        "observedGeneration": 1,
    }
    fields = [{"name": "level", "type": "integer"}, {"name": "group_size", "type": "integer", "default": 8}]
    status = {"observedGeneration": 1, "conditions": [ready], "fields": fields}
    found = parse_environment({"metadata": {"name": "shelf", "generation": 1}, "spec": spec, "status": status})
    assert isinstance(found, Environment)
    return found


def test_images_of_environments_and_of_inference_tests_are_limited_too() -> None:
    rules = (policy(limits={"images": ["ours/*"]}),)
    metadata = {"name": "x", "namespace": "team", "uid": "0123abcd-0000", "generation": 1}
    for image, is_allowed in (("", True), ("ours/x", True), ("theirs/x", False)):
        entry = parse_environment({"metadata": metadata, "spec": {"image": image}})
        described = plan_environment(entry, EnvironmentSeen(policies=rules), START, PlanSettings())
        trial = inference_tests.parse({"metadata": metadata, "spec": {"image": image, "entry": "letters"}})
        tested = plan_test(trial, TestSeen(policies=rules), START, PlanSettings())
        for planned in (described, tested):
            assert planned.status is not None
            assert any(isinstance(action, Create) for action in planned.actions) is is_allowed
            assert (
                "theirs/x is not among the images of TrainingPolicy team" in planned.status.message
            ) is not is_allowed


def test_a_refused_run_starts_once_the_policy_allows_it() -> None:
    world = governed(policy(limits={"gpus": 0}))
    world.settle()
    assert accepted(world)[0] == "False"
    world.policies = ()
    world.settle()
    assert accepted(world)[0] == "True"
    assert world.components() == ["api-server", "environment", "environment", "trainer"]


def test_locked_values_are_what_is_rendered_and_what_is_remembered() -> None:
    rules = {"trainer": {"gpus": 4}, "tracking": {"wandb": {"project": "p", "secretName": "w"}}}
    world = governed(policy(locked=rules))
    world.settle()
    (container,) = world.pods[world.named("trainer")]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert any(variable["name"] == "WANDB_API_KEY" for variable in container["env"])
    remembered = world.now_status.policy
    assert remembered is not None
    assert (remembered.names, remembered.locked) == (("team",), rules)


def test_environments_receive_the_names_of_locked_settings() -> None:
    world = governed(policy(locked={"environmentConfig": {"worker_timeout": 3600}}))
    first = world.reconcile()
    assert first.status is not None
    second = world.plan()
    (secret,) = (action for action in second.actions if action.key.kind == "Secret")
    assert isinstance(secret, Create)
    (place,) = parse_config(base64.b64decode(secret.manifest["data"]["run.yaml"])).environments
    assert place.locked == ("worker_timeout",)
    assert place.config_for({"group_size"}) == {"group_size": 8}
    assert place.config_for({"group_size", "worker_timeout"}) == {"group_size": 8, "worker_timeout": 3600}


def test_policy_is_recorded_in_status_before_anything_is_created() -> None:
    world = governed(policy(locked={"trainer": {"gpus": 4}}))
    first = world.reconcile()
    assert first.actions == ()
    assert first.status is not None
    assert first.status.policy is not None
    world.policies = (policy(locked={"trainer": {"gpus": 8}}),)
    world.settle()
    (container,) = world.pods[world.named("trainer")]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4


def test_a_namespace_without_policies_costs_no_write() -> None:
    world = World()
    assert world.reconcile().actions != ()
    assert world.now_status.policy is None


@pytest.mark.parametrize("before", [(), (policy(locked={"training": {"seed": 0}}),)], ids=["none", "another"])
def test_a_policy_that_changes_later_reaches_no_live_run(before: tuple[AnyPolicy, ...]) -> None:
    world = governed(*before)
    world.settle()
    world.start_all()
    world.settle()
    assert world.phase == "Running"
    writes, version = world.status_writes, world.version
    world.policies = (policy(locked={"training": {"seed": 5}, "trainer": {"gpus": 8}}, limits={"activeRuns": 0}),)
    world.settle()
    assert (world.phase, world.status_writes, world.version) == ("Running", writes, version)


def test_a_live_run_keeps_to_the_limits_it_was_started_under() -> None:
    world = governed(policy(limits={"replicas": 2}))
    world.settle()
    world.start_all()
    world.settle()
    world.policies = ()
    pods = dict(world.pods)
    world.change_spec(environments=[{"name": "letters", "replicas": 3, "config": {"group_size": 8}}])
    world.settle()
    assert "environments: the sum of replicas, autoscaling.max where set: 3 is more than 2" in accepted(world)[1]
    assert (world.phase, world.pods.keys()) == ("Running", pods.keys())


def test_a_resumed_run_keeps_the_policy_it_was_started_under() -> None:
    world = governed(policy(locked={"trainer": {"gpus": 4}}))
    world.settle()
    world.start_all()
    world.settle()
    world.change_spec(suspend=True)
    while world.phase != "Suspended":
        world.settle()
        world.terminate()
    world.policies = (policy(locked={"trainer": {"gpus": 8}}),)
    world.change_spec(suspend=False)
    world.settle()
    (container,) = world.pods[world.named("trainer")]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4


ONE_AT_A_TIME = policy(limits={"activeRuns": 1})


def test_a_run_beyond_the_limit_is_queued_with_a_message() -> None:
    world = governed(ONE_AT_A_TIME)
    world.runs_ahead = 1
    world.settle()
    status = world.now_status
    assert world.pods == {}
    assert (status.phase, status.queued_since) == ("Pending", START)
    assert status.message == ("Queued: TrainingPolicy team allows 1 active run in this namespace.")
    reconciling = status.condition("Reconciling")
    assert reconciling is not None
    assert reconciling.reason == "Queued"
    writes = world.status_writes
    world.advance(3600)
    world.settle()
    assert world.status_writes == writes, "waiting costs nothing"
    world.runs_ahead = 0
    world.settle()
    assert world.now_status.queued_since is None
    assert "trainer" in world.components()


def test_a_queued_run_is_checked_against_current_policies() -> None:
    world = governed(ONE_AT_A_TIME)
    world.runs_ahead = 1
    world.settle()
    world.policies = (policy(limits={"activeRuns": 5, "steps": 10}),)
    world.settle()
    assert "training.steps: 100 is more than 10" in accepted(world)[1]
    assert world.now_status.queued_since is None, "it blocks no other run"


def test_a_waiting_run_can_be_stopped() -> None:
    world = governed(ONE_AT_A_TIME)
    world.runs_ahead = 1
    world.settle()
    world.change_spec(stop=True)
    world.settle()
    assert (world.phase, world.now_status.queued_since) == ("Stopped", None)


def test_a_suspended_run_gives_up_its_place_and_waits_for_another() -> None:
    world = running_world()
    world.policies = (ONE_AT_A_TIME,)
    world.change_spec(suspend=True)
    while world.phase != "Suspended":
        world.settle()
        world.terminate()
    assert not is_admitted(world.now_status)
    world.runs_ahead = 1
    world.change_spec(suspend=False)
    world.settle()
    assert (world.phase, world.pods) == ("Pending", {})
    world.runs_ahead = 0
    world.settle()
    assert "trainer" in world.components()


@dataclass(frozen=True)
class Case:
    status: TrainingRunStatus
    holds: bool
    wants: bool
    suspend: bool = False


SOME_POLICY = PolicyInForce(names=("team",))
CASES = {
    "new": Case(TrainingRunStatus(), holds=False, wants=True),
    "new and suspended": Case(TrainingRunStatus(), holds=False, wants=False, suspend=True),
    "refused": Case(TrainingRunStatus(observed_generation=1), holds=False, wants=False),
    "queued": Case(TrainingRunStatus(observed_generation=1, queued_since=START), holds=False, wants=True),
    "admitted": Case(TrainingRunStatus(observed_generation=1, policy=SOME_POLICY), holds=True, wants=False),
    "starting": Case(TrainingRunStatus(observed_generation=1, phase="Starting"), holds=True, wants=False),
    "between two pods": Case(TrainingRunStatus(observed_generation=1, attempt=2), holds=True, wants=False),
    "stopping": Case(TrainingRunStatus(observed_generation=1, phase="Stopping"), holds=True, wants=False),
    "suspended": Case(
        TrainingRunStatus(observed_generation=1, phase="Suspended", attempt=1), holds=False, wants=False, suspend=True
    ),
    "resumed": Case(TrainingRunStatus(observed_generation=1, phase="Suspended", attempt=1), holds=False, wants=True),
    "completed": Case(TrainingRunStatus(observed_generation=1, phase="Completed", attempt=1), holds=False, wants=False),
}


def run_in(case: Case, uid: str = "u", age: int = 0) -> TrainingRun:
    world = World(minimal_spec(suspend=case.suspend))
    world.status = msgspec.to_builtins(case.status)
    born = START.replace(minute=age)
    metadata = msgspec.structs.replace(world.run.metadata, uid=uid, creation_timestamp=born)
    return msgspec.structs.replace(world.run, metadata=metadata)


@pytest.mark.parametrize("name", CASES)
def test_which_runs_are_admitted_and_which_are_queueing(name: str) -> None:
    case = CASES[name]
    assert is_admitted(case.status) is case.holds
    assert is_queueing(run_in(case)) is case.wants


def test_admitted_runs_and_older_queued_runs_are_ahead() -> None:
    mine = run_in(CASES["queued"], "mine", age=10)
    others = [
        run_in(CASES["starting"], "younger, at work", age=30),
        run_in(CASES["queued"], "older", age=5),
        run_in(CASES["queued"], "younger", age=20),
        run_in(CASES["new"], "just taking a place", age=20),
        run_in(CASES["refused"], "older, refused", age=1),
        run_in(CASES["completed"], "older, done", age=1),
    ]
    assert runs_ahead(mine, [mine, *others], taking={"just taking a place"}) == 3


SHARED = {"spec": {"shareProcessNamespace": True}}
MISSPELT = {"spec": {"containers": [{"name": "main", "resorces": {}}]}}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": {"serviceAccountName": "admin"}}, "trainer.template: spec.serviceAccountName is not allowed"),
        (SHARED, "trainer.template: spec.shareProcessNamespace is not allowed in a template; a TrainingPolicy can"),
        (MISSPELT, "containers.resorces is not allowed"),
        (MISSPELT, "permissions.templateFields; did you mean resources?\n"),
    ],
)
def test_a_template_outside_the_allow_list_is_refused_without_any_policy(template: dict[str, Any], words: str) -> None:
    world = governed(trainer={"template": template})
    world.settle()
    truth, message = accepted(world)
    assert (truth, words in f"{message}\n", world.pods) == ("False", True, {})


@pytest.mark.parametrize(
    ("lists", "is_allowed"),
    [
        ([["spec.shareProcessNamespace"]], True),
        ([["spec.shareProcessNamespace"], None], True),
        ([["spec.shareProcessNamespace"], []], False),
        ([["volumes.csi"]], False),
    ],
)
def test_a_policy_permits_template_fields_by_name(lists: list[list[str] | None], is_allowed: bool) -> None:
    permissions = [{"templateFields": each} if each is not None else {} for each in lists]
    world = governed(
        *(policy(f"p{number}", permissions=each) for number, each in enumerate(permissions)),
        trainer={"template": SHARED},
    )
    world.settle()
    assert (accepted(world)[0] == "True") is is_allowed


def test_an_environments_template_is_checked_where_it_is_written() -> None:
    metadata = {"name": "x", "namespace": "team", "uid": "0123abcd-0000", "generation": 1}
    entry = parse_environment({"metadata": metadata, "spec": {"template": {"spec": {"hostNetwork": True}}}})
    planned = plan_environment(entry, EnvironmentSeen(), START, PlanSettings())
    assert planned.status is not None
    assert "template: spec.hostNetwork is not allowed in a template" in planned.status.message
    assert planned.actions == ()
