"""Runs that name Environments: looked up once, checked, and then left alone."""

from typing import Any

import msgspec
import pytest

from clotho.api.environment import AnyEnvironment, parse
from clotho.plan.model import Create, Observed
from unit.plan.run.world import START, World, minimal_spec

Body = dict[str, Any]
FIELDS = [
    {"name": "group_size", "type": "integer", "default": 8},
    {"name": "letters", "type": "string", "minLength": 1},
    {"name": "tokenizer_name", "type": "string", "fixed": True},
]


def entry(*, is_ready: bool = True, stalled: str = "", generation: int = 1, **spec: Any) -> AnyEnvironment:
    kind, truth = ("Stalled", "True") if stalled else ("Ready", "True" if is_ready else "False")
    report = {"type": kind, "status": truth, "reason": "R", "message": stalled, "observedGeneration": 1}
    return parse(
        {
            "metadata": {"name": "letters", "generation": generation},
            "spec": spec,
            "status": {
                "observedGeneration": 1,
                "conditions": [{**report, "lastTransitionTime": START.isoformat()}],
                "fields": FIELDS,
            },
        }
    )


class Named(World):
    """A run with one environment, by name."""

    def __init__(self, found: AnyEnvironment | None = None, **environment: Any) -> None:
        asked = {"name": "mine", "environmentName": "letters", **environment}
        super().__init__(minimal_spec(environments=[asked]))
        self.found = found

    @property
    def observed(self) -> Observed:
        return msgspec.structs.replace(super().observed, environments={"letters": self.found} if self.found else {})

    def environment_pod(self) -> Body:
        self.settle()
        (pod,) = (pod for name, pod in self.pods.items() if "-env-" in name)
        return pod

    def settle(self) -> None:
        for _ in range(10):
            wanted = self.reconcile()
            if not wanted.actions and wanted.status is None:
                return
        raise AssertionError("does not come to rest")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "Waiting for environment letters: the Environment does not exist."),
        (entry(is_ready=False), "Waiting for environment letters: it is being described."),
        (entry(generation=2), "Waiting for environment letters: it is being described."),
        (entry(stalled="It hangs."), "Waiting for environment letters: It hangs."),
        (entry(stalled="It hung.", generation=2), "Waiting for environment letters: it is being described."),
    ],
)
def test_a_run_is_pending_until_its_environment_is_ready(found: AnyEnvironment | None, words: str) -> None:
    world = Named(found)
    world.settle()
    assert (world.phase, world.now_status.message, world.pods) == ("Pending", words, {})
    world.found = entry()
    world.settle()
    assert world.pods


def test_pods_use_the_environments_settings_overridden_by_the_run() -> None:
    world = Named(
        entry(
            image="registry/letters:1",
            entry="letters:Letters",
            configMapName="code",
            secretName="keys",
            config={"letters": "abc", "group_size": 4},
            template={"spec": {"nodeSelector": {"disk": "ssd"}}},
        ),
        config={"letters": "xyz"},
        template={"spec": {"priorityClassName": "high"}},
    )
    pod = world.environment_pod()
    main = next(each for each in pod["spec"]["containers"] if each["name"] == "main")
    assert main["image"] == "registry/letters:1"
    assert main["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "code", "mountPath": "/environment", "readOnly": True} in main["volumeMounts"]
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["spec"]["priorityClassName"] == "high"
    assert [each["name"] for each in pod["spec"]["initContainers"] if "envFrom" in each] == ["wait"]
    (resolved,) = world.now_status.resolved
    assert resolved.config == {"letters": "xyz", "group_size": 4}
    assert resolved.entry == "letters:Letters"


def test_the_resolved_environment_is_recorded_before_anything_is_created() -> None:
    world = Named(entry())
    first = world.reconcile()
    assert first.actions == ()
    assert first.status is not None
    assert first.status.resolved[0].config == {"group_size": 8}, "the described default is written out"
    second = world.plan()
    assert any(isinstance(action, Create) for action in second.actions)


def test_a_later_change_does_not_reach_the_run() -> None:
    world = Named(entry(image="registry/letters:1"))
    world.settle()
    world.found = entry(image="registry/letters:2", generation=7)
    world.settle()
    world.pods.clear()  # somebody deletes them all
    main = world.environment_pod()["spec"]["containers"][0]
    assert main["image"] == "registry/letters:1"
    world.found = None
    world.settle()
    assert world.now_status.resolved


@pytest.mark.parametrize("template", [{}, {"spec": {"containers": [{"name": "main", "image": "mine:1"}]}}])
def test_a_template_of_the_environment_that_is_no_pod_is_reported_with_its_place(template: Body) -> None:
    world = Named(entry(template={"spec": {"containers": [{"image": "x"}]}}), template=template)
    world.settle()
    assert world.pods == {}
    accepted = world.now_status.condition("Accepted")
    assert accepted is not None
    assert accepted.status == "False"
    assert "environment letters: spec.template.spec.containers[0]: name is missing" in world.now_status.message


def test_all_problems_are_reported_at_once_and_nothing_is_made() -> None:
    world = Named(entry(), config={"leters": "x", "letters": "", "tokenizer_name": "mine"})
    world.settle()
    status = world.now_status
    accepted = status.condition("Accepted")
    assert accepted is not None
    assert accepted.status == "False"
    for words in (
        "environments.mine.config.leters: unknown field; did you mean letters?",
        'environments.mine.config.letters: "" is shorter than 1',
        "environments.mine.config.tokenizer_name: it is decided by the run",
    ):
        assert words in status.message
    assert (world.pods, status.resolved) == ({}, ())


def test_a_described_group_size_must_divide_the_batch() -> None:
    world = Named(entry(config={"group_size": 48}))
    world.settle()
    assert "training.batchSize: 128 is not a multiple of group_size 48 (environment mine)" in world.now_status.message


def test_a_run_that_brings_its_own_code_is_not_held_against_the_description() -> None:
    world = Named(entry(is_ready=False), image="registry/newer:3", config={"brand_new": 1})
    assert world.environment_pod()["spec"]["containers"][0]["image"] == "registry/newer:3"


JUDGE = {"cidr": "203.0.113.0/24"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, ["203.0.113.0/24"]), ({"egress": []}, []), ({"egress": [{"cidr": "198.51.100.7/32"}]}, ["198.51.100.7/32"])],
)
def test_egress_of_the_environment_is_the_default_of_its_runs(asked: Body, expected: list[str]) -> None:
    world = Named(entry(egress=[JUDGE], cacheClaimName="hub"), **asked)
    assert "cache" in {volume["name"] for volume in world.environment_pod()["spec"]["volumes"]}
    opened = [seen.spec["egress"] for key, seen in world.objects.items() if key.name.endswith("-env-mine")]
    assert [rule["to"][0]["ipBlock"]["cidr"] for egress in opened for rule in egress] == expected
