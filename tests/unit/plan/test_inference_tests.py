"""The life of an InferenceTest, played through without a cluster."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clotho.api import inference_tests as api
from clotho.api.environment import Environment
from clotho.api.environment import parse as parse_environment
from clotho.plan import inference_tests as planner
from clotho.plan.model import Apply, Create, Delete, ObjectKey, ObjectSeen, Plan, Reference
from clotho.plan.ownership import owners_in
from clotho.plan.pods import parse_pod
from clotho.plan.settings import PlanSettings
from unit.plan.kstatus import kstatus
from unit.plan.pulling import pulling
from unit.plan.run.world import START

Body = dict[str, Any]
GOOD = {"stepsTested": 3, "completions": 48, "correct": 24, "stepsWithCorrect": 3}


FIELDS = ("group_size", "letters")


def environment(
    *, is_ready: bool = True, stalled: str = "", generation: int = 1, fields: tuple[str, ...] = FIELDS, **spec: Any
) -> Environment:
    kind, truth = ("Stalled", "True") if stalled else ("Ready", "True" if is_ready else "False")
    moment = START.isoformat()
    report = {"type": kind, "status": truth, "reason": "R", "message": stalled}
    found = parse_environment(
        {
            "metadata": {"name": "letters", "generation": generation},
            "spec": spec,
            "status": {
                "observedGeneration": 1,
                "conditions": [{**report, "lastTransitionTime": moment, "observedGeneration": 1}],
                "fields": [{"name": name, "type": "any"} for name in fields],
            },
        }
    )
    assert isinstance(found, Environment)
    return found


class World:
    def __init__(self, seen: Environment | None = None, **spec: Any) -> None:
        self.spec: Body = {"environmentName": "letters"} | spec
        self.status: Body = {"observedGeneration": -1, "phase": "Pending"}
        self.environment = seen
        self.pods: dict[str, Body] = {}
        self.objects: dict[ObjectKey, ObjectSeen] = {}
        self.missing: tuple[Reference, ...] = ()
        self.now = START
        self.events: list[str] = []
        self.is_deleted = False

    @property
    def test(self) -> api.InferenceTest:
        metadata = {"name": "trial", "namespace": "team", "uid": "0123abcd-0000", "generation": 1}
        found = api.parse({"metadata": metadata, "spec": self.spec, "status": self.status})
        assert isinstance(found, api.InferenceTest), found
        return found

    def plan(self) -> Plan[Any]:
        pods = tuple(parse_pod(pod) for pod in self.pods.values())
        seen = planner.TestSeen(pods=pods, objects=self.objects, environment=self.environment, missing=self.missing)
        return planner.plan_test(self.test, seen, self.now, PlanSettings())

    def reconcile(self) -> Plan[Any]:
        wanted = self.plan()
        for action in wanted.actions:
            match action:
                case Apply(key=key, manifest=manifest):
                    head, spec = manifest["metadata"], manifest["spec"]
                    self.objects[key] = ObjectSeen(
                        uid="w",
                        resource_version="1",
                        created_at=self.now,
                        labels=head["labels"],
                        owners=owners_in(head),
                        spec=spec,
                    )
                case Create(key=key, manifest=manifest):
                    assert ObjectKey("NetworkPolicy", "trial-0123abcd") in self.objects, "no pod without its wall"
                    head = {"uid": f"uid-{key.name}", "creationTimestamp": self.now.isoformat()}
                    self.pods[key.name] = {
                        "metadata": manifest["metadata"] | head,
                        "spec": manifest["spec"],
                        "status": {"phase": "Pending"},
                    }
                case Delete(key=key):
                    self.is_deleted |= key.kind == "InferenceTest"
                    self.pods.pop(key.name, None)
        if wanted.status is not None:
            self.status = msgspec.json.decode(msgspec.json.encode(wanted.status))
            self.events += [event.reason for event in wanted.events]
        return wanted

    def settle(self) -> None:
        for _ in range(10):
            wanted = self.reconcile()
            if not wanted.actions and wanted.status is None:
                return
        raise AssertionError(f"does not come to rest: {self.status}")

    def pod(self, index: int) -> Body:
        return self.pods[f"trial-0123abcd-model-{index}"]

    def run_pods(self) -> None:
        for pod in self.pods.values():
            pod["status"] = {"phase": "Running"}

    def end(self, index: int, reason: str, message: str = "", trial: Body | None = None, **status: Any) -> None:
        words = {"reason": reason, "message": message} | ({"trial": trial} if trial is not None else {})
        ended = {"exitCode": 0 if reason == "Finished" else 1, "message": json.dumps(words)}
        containers = [{"name": "main", "state": {"terminated": ended}}]
        phase = "Succeeded" if reason == "Finished" else "Failed"
        self.pod(index)["status"] = {"phase": phase, "containerStatuses": containers, **status}

    @property
    def phase(self) -> str:
        return self.test.status.phase

    def model(self, index: int) -> Body:
        return dict(self.status["models"][index])


def test_an_image_that_takes_its_time_is_named_with_the_time_since_when() -> None:
    world = World(environment(), models=[{"name": "m"}], secretName="openrouter")
    world.settle()
    since = world.now
    world.pod(0)["status"] |= pulling("registry/large:1", since)
    world.settle()
    assert "image" not in world.status["message"]
    assert world.plan().wake_at == since + timedelta(seconds=10)
    world.now = since + timedelta(seconds=10)
    world.settle()
    words = f"Pulling image registry/large:1 of the pod that tries m since {since:%H:%M:%S} UTC."
    assert (world.phase, world.status["message"]) == ("Pending", words)


def test_the_three_defaults_are_tried_at_once_and_summed_up() -> None:
    world = World(environment(), secretName="openrouter")
    world.settle()
    assert (world.phase, len(world.pods)) == ("Pending", 3)
    world.run_pods()
    world.settle()
    assert world.phase == "Running"
    long = {"prompt": "2 + 2 =", "answer": "x" * 3000, "score": 0.5}
    world.end(0, "Finished", trial=GOOD | {"samples": [long] * 5, "scores": [[1.0] * 40] * 40})
    world.settle()
    assert world.phase == "Running"
    assert world.status["summary"]["tested"] == 1
    world.end(1, "Finished", trial={"stepsTested": 3, "completions": 48})
    late = {"stepsTested": 1, "completions": 16, "correct": 4, "stepsWithCorrect": 1, "output": "no answer yet"}
    world.end(2, "EnvironmentFailed", "the deadline of 600 s passed after 1 of 3 groups", trial=late)
    world.settle()
    assert world.phase == "Completed"
    assert world.model(0) == {
        "name": "qwen/qwen3-8b",
        "size": "small",
        "phase": "Completed",
        "stepsTested": 3,
        "completions": 48,
        "correct": 24,
        "accuracy": 0.5,
        "stepsWithCorrect": 3,
        "stepSuccessRate": 1.0,
        "samples": [long | {"answer": "x" * planner.SAMPLE_LIMIT}] * 2,
        "steps": [{"scores": [1.0] * planner.SCORES_LIMIT}] * planner.SCORES_LIMIT,
        "error": "",
    }
    assert (world.model(1)["phase"], world.model(1)["accuracy"]) == ("Completed", 0.0)
    assert (world.model(2)["phase"], world.model(2)["accuracy"]) == ("Failed", 0.25)
    assert world.model(2)["error"] == "The deadline of 600 s passed after 1 of 3 groups.\nno answer yet"
    assert world.status["summary"] == {
        "requested": 3,
        "tested": 3,
        "succeeded": 2,
        "bestModel": "qwen/qwen3-8b",
        "averageAccuracy": 0.25,
        "environmentWorks": True,
    }
    assert kstatus(world.test) == "Current"
    assert world.events == ["Running", "Completed"]
    assert len(world.pods) == 3, "they stay for their logs"


@pytest.mark.parametrize(("count", "message"), [(1, "Testing 1 model: 0 done."), (2, "Testing 2 models: 0 done.")])
def test_the_message_counts_the_models(count: int, message: str) -> None:
    models = [{"name": f"m{number}", "baseUrl": "https://models.example/v1"} for number in range(count)]
    world = World(environment(), models=models)
    world.settle()
    world.run_pods()
    world.settle()
    assert world.status["message"] == message


def test_a_test_without_any_group_fails_with_the_reason() -> None:
    world = World(environment(), models=[{"name": "m"}])
    world.settle()
    world.run_pods()
    world.end(0, "Unauthorized", "the server does not take the key", trial={})
    world.settle()
    assert world.phase == "Failed"
    assert world.status["message"] == "No model made a group; the first error: The server does not take the key."
    assert not world.status["summary"]["environmentWorks"]
    assert kstatus(world.test) == "Failed"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (None, "Waiting for environment letters: the Environment does not exist."),
        (environment(is_ready=False), "Waiting for environment letters: it is being described."),
        (environment(stalled="It hung.", generation=2), "Waiting for environment letters: it is being described."),
    ],
)
def test_inference_test_is_pending_until_its_environment_is_ready(seen: Environment | None, words: str) -> None:
    world = World(seen)
    world.settle()
    assert (world.phase, world.status["message"], world.pods) == ("Pending", words, {})
    world.environment = environment()
    world.settle()
    assert len(world.pods) == 3


@pytest.mark.parametrize(
    ("seen", "config", "words"),
    [
        (environment(stalled="It hangs."), {}, "Environment letters does not work: It hangs."),
        (environment(), {"leters": "a"}, "config.leters: unknown field; did you mean letters?"),
    ],
)
def test_invalid_tests_fail_without_a_pod(seen: Environment, config: Body, words: str) -> None:
    world = World(seen, config=config)
    world.settle()
    assert (world.phase, world.pods) == ("Failed", {})
    assert words in world.status["message"]


def test_no_pod_is_made_until_the_secrets_exist() -> None:
    world = World(environment(), secretName="keys")
    world.missing = (Reference("Secret", "keys", "secretName"),)
    world.settle()
    assert (world.phase, world.pods) == ("Pending", {})
    assert world.status["message"] == "Waiting for Secret keys (secretName): it does not exist in this namespace."
    assert {each["reason"] for each in world.status["conditions"]} == {"WaitingForReferences"}
    assert world.plan().wake_at is not None, "Secrets are not watched"
    world.missing = ()
    world.settle()
    assert len(world.pods) == 3
    assert {each["reason"] for each in world.status["conditions"]} == {"Pending"}


def test_everything_that_a_test_and_its_environment_name_is_looked_up() -> None:
    named = environment(configMapName="code", secretName="judge", cacheClaimName="hub")
    world = World(named, secretName="keys", models=[{"name": "a"}, {"name": "b", "secretName": "other"}])
    found = planner.references_of_test(world.test, named)
    assert {(each.kind, each.name, each.field) for each in found} == {
        ("Secret", "keys", "secretName"),
        ("Secret", "other", "models[1].secretName"),
        ("ConfigMap", "code", "environment letters: configMapName"),
        ("Secret", "judge", "environment letters: secretName"),
        ("PersistentVolumeClaim", "hub", "environment letters: cacheClaimName"),
    }
    without = World(secretName="unused", models=[{"name": "b", "secretName": "other"}])
    assert [each.name for each in planner.references_of_test(without.test, None)] == ["other"]


def test_a_private_address_fails_without_a_pod() -> None:
    world = World(environmentName="", entry="letters", models=[{"name": "m", "baseUrl": "http://169.254.169.254/v1"}])
    world.settle()
    assert world.phase == "Failed"
    assert "models[0].baseUrl: 169.254.169.254 is not a public address" in world.status["message"]
    assert world.pods == {}


def trial(world: World) -> Body:
    """The main container of the first model's pod."""
    world.settle()
    found = world.pod(0)["spec"]["containers"][0]
    assert isinstance(found, dict)
    return found


def test_pods_use_the_environments_settings_overridden_by_the_test() -> None:
    named = environment(
        secretName="keys",
        config={"letters": "abc", "vowels": 2, "group_size": 4},
        template={"spec": {"nodeSelector": {"disk": "ssd"}}},
        fields=(*FIELDS, "vowels"),
    )
    world = World(named, config={"letters": "xyz"}, groupSize=6, models=[{"name": "m"}])
    main = trial(world)
    assert main["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert world.pod(0)["spec"]["nodeSelector"] == {"disk": "ssd"}
    settings = {argument for argument in main["command"] if argument.startswith("--set=")}
    assert settings == {'--set=letters="xyz"', "--set=vowels=2", "--set=group_size=6"}


def test_group_size_is_not_passed_to_environments_without_that_field() -> None:
    world = World(environment(fields=("letters",)), config={"letters": "xyz"}, models=[{"name": "m"}])
    assert [each for each in trial(world)["command"] if each.startswith("--set=")] == ['--set=letters="xyz"']


def test_an_environment_given_directly_needs_no_catalogue() -> None:
    world = World(environmentName="", entry="letters", models=[{"name": "m"}])
    world.settle()
    assert len(world.pods) == 1


def test_a_pod_that_never_runs_or_is_deleted_does_not_block_the_others() -> None:
    world = World(environment(), models=[{"name": "lost"}, {"name": "stuck"}], timeoutSeconds=60)
    world.settle()
    world.pod(0)["status"] = {"phase": "Running"}
    world.settle()
    del world.pods["trial-0123abcd-model-0"]
    world.settle()
    assert world.model(0)["error"] == "Its pod was deleted before it had ended."
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}
    world.pod(1)["status"] = {"phase": "Pending", "conditions": [scheduled]}
    world.settle()
    assert "0/3 nodes" in world.status["message"]
    wake_at = world.plan().wake_at
    assert wake_at is not None
    world.now = wake_at
    world.settle()
    assert (world.phase, world.pods) == ("Failed", {})
    assert "0/3 nodes" in world.model(1)["error"]


def test_a_pod_without_a_key_that_it_names_is_given_up_soon() -> None:
    world = World(environment(), models=[{"name": "m"}], secretName="keys", timeoutSeconds=3600)
    world.settle()
    lacking = {"reason": "CreateContainerConfigError", "message": "couldn't find key OPENAI_API_KEY in Secret x/keys"}
    containers = [{"name": "main", "state": {"waiting": lacking}}]
    world.pod(0)["status"] = {"phase": "Pending", "containerStatuses": containers}
    world.settle()
    assert world.phase == "Pending", "its node may not have read the Secret yet"
    wake_at = world.plan().wake_at
    assert wake_at is not None
    assert (wake_at - world.now).total_seconds() <= 60
    world.now = wake_at
    world.settle()
    assert (world.phase, world.pods) == ("Failed", {})
    assert "couldn't find key OPENAI_API_KEY in Secret x/keys" in world.model(0)["error"]


def test_a_pod_without_a_termination_message_is_explained() -> None:
    world = World(environment(), models=[{"name": "m"}])
    world.settle()
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    containers = [{"name": "main", "state": {"terminated": ended}}]
    world.pod(0)["status"] = {"phase": "Failed", "containerStatuses": containers}
    world.settle()
    assert "ran out of memory" in world.model(0)["error"]


def test_a_result_that_is_stored_stands_and_the_test_expires() -> None:
    world = World(environment(), models=[{"name": "m"}], ttlSecondsAfterFinished=60)
    world.settle()
    world.end(0, "Finished", trial=GOOD)
    world.settle()
    world.pods.clear()
    world.settle()
    assert (world.phase, world.model(0)["accuracy"]) == ("Completed", 0.5)
    world.now += timedelta(seconds=61)
    world.reconcile()
    assert world.is_deleted


def test_exit_code_zero_without_results_is_no_success() -> None:
    world = World(environment(), models=[{"name": "m"}])
    world.settle()
    containers = [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]
    world.pod(0)["status"] = {"phase": "Succeeded", "containerStatuses": containers}
    world.settle()
    assert (world.phase, world.model(0)["phase"]) == ("Failed", "Failed")


def test_network_policy_is_repaired_while_a_pod_is_alive() -> None:
    world = World(environment())
    world.settle()
    (key,) = world.objects
    world.objects[key] = msgspec.structs.replace(world.objects[key], spec={"egress": [{}]})
    (repair,) = world.reconcile().actions
    assert isinstance(repair, Apply)
    assert repair.key == key
    for index in range(3):
        world.end(index, "Finished", trial={"stepsTested": 1, "completions": 2, "correct": 1})
    del world.objects[key]
    assert world.plan().actions == (), "nothing is left to protect"
