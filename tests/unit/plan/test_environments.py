"""The life of an Environment, played through without a cluster."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clotho.api.environment import Environment, parse
from clotho.plan.environments import EnvironmentSeen, plan_environment
from clotho.plan.model import Apply, Create, Delete, ObjectKey, ObjectSeen, Plan, Probe, Refusal
from clotho.plan.ownership import owners_in
from clotho.plan.pods import parse_pod
from clotho.plan.settings import PlanSettings
from clotho_contract.description import ConfigField, Description
from unit.plan.kstatus import kstatus
from unit.plan.pulling import pulling
from unit.plan.run.world import START

Body = dict[str, Any]
FOUND = Description(name="letters", class_name="Letters", fields=(ConfigField(name="group_size", type="integer"),))


class Catalogue:
    """One Environment and its describing pod; takes a plan's writes as the API server would."""

    def __init__(self, **spec: Any) -> None:
        self.spec: Body = spec
        self.status: Body = {"observedGeneration": -1}
        self.generation = 1
        self.pod: Body | None = None
        self.objects: dict[ObjectKey, ObjectSeen] = {}
        self.files: str | None = ""
        self.answer: Description | None = None
        self.refused: dict[ObjectKey, Refusal] = {}
        self.now = START
        self.events: list[str] = []
        self.pods_made = 0

    @property
    def environment(self) -> Environment:
        metadata = {"name": "letters", "namespace": "team", "uid": "0123abcd-0000", "generation": self.generation}
        found = parse({"metadata": metadata, "spec": self.spec, "status": self.status})
        assert isinstance(found, Environment)
        return found

    def plan(self) -> Plan[Any]:
        pod = parse_pod(self.pod) if self.pod else None
        heard = Probe(pod_uid=pod.uid, taken_at=self.now, answer=self.answer) if pod and self.answer else None
        seen = EnvironmentSeen(
            pod=pod,
            objects=self.objects,
            files=self.files,
            description=heard,
            refused=self.refused,
        )
        return plan_environment(self.environment, seen, self.now, PlanSettings())

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
                case Create(manifest=manifest):
                    assert self.pod is None
                    self.pods_made += 1
                    head = {"uid": f"pod-{self.pods_made}", "creationTimestamp": self.now.isoformat()}
                    self.pod = {"metadata": manifest["metadata"] | head, "status": {"phase": "Pending"}}
                case Delete():
                    self.pod, self.answer = None, None
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

    def change(self, **spec: Any) -> None:
        self.spec |= spec
        self.generation += 1

    def end_pod(self, *, exit_code: int = 1, words: Body | None = None, **status: Any) -> None:
        assert self.pod is not None
        ended = {
            "exitCode": exit_code,
            "message": json.dumps(words) if words else "",
            "finishedAt": self.now.isoformat(),
        }
        containers = [{"name": "main", "state": {"terminated": ended}}]
        self.pod["status"] = {"phase": "Failed", "containerStatuses": containers, **status}

    @property
    def verdict(self) -> str:
        return kstatus(self.environment)

    @property
    def message(self) -> str:
        return str(self.status["message"])


def described(**spec: Any) -> Catalogue:
    world = Catalogue(**spec)
    world.settle()
    world.answer = FOUND
    world.settle()
    assert world.verdict == "Current"
    return world


def test_network_policy_precedes_the_pod_and_pod_is_deleted_once_described() -> None:
    world = Catalogue()
    first = world.plan()
    assert [type(action) for action in first.actions] == [Apply, Create]
    world.settle()
    assert world.verdict == "InProgress"
    world.answer = FOUND
    heard = world.reconcile()
    assert heard.actions == (), "the description is stored before the pod is deleted"
    assert [type(action) for action in world.reconcile().actions] == [Delete]
    world.settle()
    assert (world.verdict, world.pod, world.pods_made) == ("Current", None, 1)
    assert world.status["fields"] == [{"name": "group_size", "type": "integer"}]
    assert world.message == "Letters has 1 setting."
    assert world.status["described"]["image"] == PlanSettings().render.images.environment
    assert world.events == ["Described"]


@pytest.mark.parametrize(
    "change", [{"image": "registry/letters:2"}, {"entry": "other:Class"}, {"configMapName": "code"}]
)
def test_environment_is_described_again_when_its_code_changes(change: Body) -> None:
    world = described()
    world.change(**change)
    world.files = "hash" if "configMapName" in change else ""
    world.settle()
    assert world.pods_made == 2
    assert world.verdict == "InProgress"
    assert "fields" not in world.status
    world.answer = FOUND
    world.settle()
    assert world.verdict == "Current"


@pytest.mark.parametrize("change", [{"description": "Ours."}, {"config": {"group_size": 4}}, {"secretName": "keys"}])
def test_other_changes_import_nothing(change: Body) -> None:
    world = described()
    world.change(**change)
    world.settle()
    assert (world.pods_made, world.verdict) == (1, "Current")


def test_description_from_a_pod_of_the_old_image_is_ignored() -> None:
    world = Catalogue()
    world.settle()
    world.change(image="registry/letters:2")
    world.answer = FOUND
    assert world.pod is not None
    world.pod["metadata"]["deletionTimestamp"] = world.now.isoformat()
    world.reconcile()
    assert "described" not in world.status


HANGS = {"reason": "EnvironmentFailed", "message": "letters could not be imported within 120 s; it printed nothing"}


def test_a_failure_of_its_own_is_final_until_it_is_changed() -> None:
    world = Catalogue()
    world.settle()
    world.end_pod(words=HANGS)
    world.settle()
    assert world.verdict == "Failed"
    assert world.message == "Letters could not be imported within 120 s; it printed nothing."
    assert world.events == ["NotDescribed"]
    world.now += timedelta(hours=1)
    world.settle()
    assert world.pods_made == 1
    world.pod = None  # somebody deleted it: try again
    world.settle()
    assert (world.pods_made, world.verdict) == (2, "InProgress")


INDEX = {"name": "packages", "env": [{"name": "PIP_INDEX_URL", "value": "https://index.example/simple"}]}


@pytest.mark.parametrize("change", [{"nodeSelector": {"disk": "fast"}}, {"initContainers": [INDEX]}])
def test_a_change_of_the_template_tries_a_failed_import_again(change: Body) -> None:
    world = Catalogue(requirements=["roman==5.0 --hash=sha256:" + "0" * 64], egress=[{"cidr": "203.0.113.0/24"}])
    world.settle()
    world.end_pod(words=HANGS)
    world.settle()
    world.change(template={"spec": change})
    world.settle()
    assert (world.pods_made, world.verdict) == (2, "InProgress")
    world.answer = FOUND
    world.settle()
    world.change(template={})
    world.settle()
    assert (world.pods_made, world.verdict) == (2, "Current"), "what was described is the same"


@pytest.mark.parametrize("status", [{"reason": "Evicted"}, {"reason": "DeadlineExceeded"}, {"reason": "NodeLost"}])
def test_infrastructure_failures_are_retried_after_a_pause(status: Body) -> None:
    world = Catalogue()
    world.settle()
    world.end_pod(exit_code=137, **status)
    world.settle()
    assert (world.pods_made, world.verdict) == (1, "InProgress")
    wake_at = world.plan().wake_at
    assert wake_at is not None
    world.now = wake_at
    world.settle()
    assert world.pods_made == 2


@pytest.mark.parametrize(
    ("conditions", "wait"),
    [([], 60), ([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-01T12:00:30Z"}], 90)],
)
@pytest.mark.parametrize("reason", ["OutOfcpu", "DeadlineExceeded"])
def test_a_pod_in_which_nothing_ever_ran_is_tried_again_as_well(reason: str, conditions: list[Body], wait: int) -> None:
    world = Catalogue()
    world.settle()
    assert world.pod is not None
    world.pod["status"] = {"phase": "Failed", "reason": reason, "conditions": conditions}
    world.now += timedelta(seconds=40)
    world.settle()
    assert world.pods_made == 1
    assert world.plan().wake_at == START + timedelta(seconds=wait)
    world.now = START + timedelta(seconds=wait)
    world.settle()
    assert world.pods_made == 2


def test_files_that_are_not_there_are_waited_for() -> None:
    world = Catalogue(configMapName="code")
    world.files = None
    world.settle()
    assert (world.verdict, world.pods_made) == ("InProgress", 0)
    assert world.message == ("Waiting for ConfigMap code (spec.configMapName): it does not exist in this namespace.")
    assert world.plan().wake_at is not None
    world.files = "hash"
    world.settle()
    assert world.pods_made == 1


def test_a_pod_that_is_refused_is_reported_and_not_retried_for_ever() -> None:
    world = Catalogue()
    world.refused = {ObjectKey("Pod", "letters-0123abcd-describe"): Refusal(message="no such class", is_permanent=True)}
    world.settle()
    assert (world.verdict, world.pods_made) == ("Failed", 0)
    assert "refused Pod letters-0123abcd-describe: no such class" in world.message


def test_an_image_that_cannot_be_pulled_is_reported() -> None:
    world = Catalogue(image="registry/nope:1")
    world.settle()
    assert world.pod is not None
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    world.pod["status"]["containerStatuses"] = [{"name": "main", "image": "registry/nope:1", "state": waiting}]
    world.settle()
    assert world.verdict == "InProgress"
    assert "registry/nope:1" in world.message


def test_an_image_that_takes_its_time_is_named_with_the_time_since_when() -> None:
    world = Catalogue(image="registry/large:1")
    world.settle()
    assert world.pod is not None
    world.pod["status"] |= pulling("registry/large:1", world.now)
    world.settle()
    assert "pulling" not in world.message
    since, wake_at = world.now, world.plan().wake_at
    assert wake_at == since + timedelta(seconds=10)
    world.now = wake_at
    world.settle()
    words = f"; pulling image registry/large:1 of that pod since {since:%H:%M:%S} UTC."
    assert world.message == f"The environment is being imported in a pod of its own{words}"
    assert world.verdict == "InProgress"


def test_an_unreadable_spec_is_reported() -> None:
    body = {"metadata": {"name": "e", "generation": 1}, "spec": {"image": 7}}
    wanted = plan_environment(parse(body), EnvironmentSeen(), START, PlanSettings())
    assert wanted.status is not None
    assert wanted.status.message == "The spec is not valid: spec.image: expected `str`, got `int`."


def test_a_flood_from_untrusted_code_is_cut() -> None:
    world = Catalogue()
    world.settle()
    world.answer = Description(name="x" * 9999, fields=tuple(ConfigField(name=f"f{n}") for n in range(999)))
    world.settle()
    assert len(world.status["name"]) == 128
    assert (len(world.status["fields"]), world.status["omittedFields"]) == (256, 743)


def test_a_config_that_its_own_code_refuses_is_reported_at_once_and_fixed_without_importing_again() -> None:
    world = Catalogue(config={"group_sise": 4})
    world.settle()
    world.answer = FOUND
    world.settle()
    assert world.verdict == "Failed"
    assert world.message.startswith("The config is not valid: config.group_sise: unknown field")
    assert [each["name"] for each in world.status["fields"]] == ["group_size"], "what it knows can be looked up"
    world.change(config={"group_size": 4})
    world.settle()
    assert (world.verdict, world.pods_made) == ("Current", 1)


def wall_of(world: Catalogue) -> ObjectKey:
    return next(key for key in world.objects if key.kind == "NetworkPolicy")


def test_network_policy_is_repaired_while_the_pod_is_alive() -> None:
    world = Catalogue()
    world.settle()
    key = wall_of(world)
    edited = {**world.objects[key].spec, "egress": [{}]}
    world.objects[key] = msgspec.structs.replace(world.objects[key], spec=edited)
    (repair,) = world.reconcile().actions
    assert isinstance(repair, Apply)
    assert repair.manifest["spec"]["egress"] == []
    del world.objects[key]
    assert [action.key for action in world.reconcile().actions] == [key]
    world.settle()


def test_a_template_that_no_pod_can_have_is_refused_before_anything_is_imported() -> None:
    unsafe = {"spec": {"containers": [{"name": "main", "securityContext": {"privileged": True}}]}}
    world = Catalogue(template=unsafe)
    world.settle()
    assert (world.verdict, world.pods_made) == ("Failed", 0)
    assert "spec.template: spec.containers[main].securityContext.privileged must not be set" in world.message
    world = described()
    world.change(template=unsafe)
    world.settle()
    assert world.verdict == "Failed"


INDEX = {"cidr": "203.0.113.0/24"}
LINE = f"tenacity==9.1.2 --hash=sha256:{'0' * 64}"


def egress_of(world: Catalogue) -> list[Body]:
    (seen,) = world.objects.values()
    return list(seen.spec["egress"])


def test_egress_is_closed_while_an_environment_is_described() -> None:
    world = Catalogue(egress=[INDEX])
    world.reconcile()
    assert egress_of(world) == []


def test_requirements_are_installed_before_the_import_through_the_egress_of_the_environment() -> None:
    variable = {"name": "PIP_INDEX_URL", "value": "https://index.example/simple"}
    template = {"spec": {"initContainers": [{"name": "packages", "env": [variable], "image": "x"}]}}
    world = Catalogue(egress=[INDEX], requirements=[LINE], template=template)
    (create,) = [action for action in world.plan().actions if isinstance(action, Create)]
    (install,) = create.manifest["spec"]["initContainers"]
    assert variable in install["env"]
    assert install["image"] != "x"
    world.reconcile()
    (rule, _dns) = egress_of(world)
    assert rule["to"] == [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    before = world.pod
    world.change(egress=[{"cidr": "198.51.100.0/24"}])
    world.reconcile()
    assert (world.pod, before is None) == (None, False), "another way to the index is another attempt"


def test_requirements_without_egress_are_refused() -> None:
    world = Catalogue(requirements=[LINE])
    world.settle()
    assert world.pod is None
    assert "requirements: they are installed from a package index, which needs egress" in world.message


def test_a_refused_edit_opens_nothing_for_a_pod_that_is_alive() -> None:
    world = Catalogue(egress=[INDEX], requirements=[LINE])
    world.reconcile()
    world.change(egress=[{"cidr": "10.0.0.0/8"}])
    world.reconcile()
    assert egress_of(world) == []
    assert "10.0.0.0/8 is not a public network" in world.message
