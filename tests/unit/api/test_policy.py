"""What TrainingPolicies forbid, fill in and add up to."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from clotho.api.lockable import LEAVES
from clotho.api.policy import Policy, combine, fill_in, violations
from clotho.api.training_policy import AnyPolicy, TrainingPolicy, UnreadablePolicy, parse
from clotho.api.training_run import TrainingRunSpec

ROOT = Path(__file__).parents[3]
Body = dict[str, Any]


def policy(name: str = "team", **spec: Any) -> AnyPolicy:
    return parse({"metadata": {"name": name}, "spec": spec})


def locking(**locked: Any) -> Policy:
    return combine([policy(locked=locked)])


def limiting(**limits: Any) -> Policy:
    return combine([policy(limits=limits)])


def run(**changes: Any) -> TrainingRunSpec:
    smallest = {
        "model": {"name": "Qwen/Qwen3-8B"},
        "environments": [{"name": "gsm8k", "replicas": 2}],
        "training": {"steps": 100},
    }
    return msgspec.convert(smallest | changes, TrainingRunSpec)


def environment(**changes: Any) -> Body:
    return {"environments": [{"name": "gsm8k"} | changes]}


def pod(**spec: Any) -> Body:
    return {"template": {"spec": spec}}


def container(**fields: Any) -> Body:
    return pod(containers=[{"name": "main"} | fields])


NAMED: list[tuple[Policy, Body, str]] = [
    (locking(training={"steps": 2500}), {}, "training.steps: 100 is not allowed, it is locked to 2500 by"),
    (
        locking(training={"lora": {"rank": 32}}),
        {"training": {"steps": 1, "lora": {"rank": 64}}},
        "training.lora.rank: 64",
    ),
    (locking(training={"learningRate": 5e-5}), {"training": {"steps": 1, "learningRate": 0.1}}, "is locked to 5e-05"),
    (
        locking(model={"name": "a"}),
        {},
        "model.name: Qwen/Qwen3-8B is not allowed, it is locked to a by TrainingPolicy team",
    ),
    (
        locking(tracking={"wandb": {"project": "p"}}),
        {"tracking": {"wandb": {"project": "q"}}},
        "tracking.wandb.project: q",
    ),
    (
        locking(trainer={"template": {"spec": {"a": 1}}}),
        {"trainer": pod(a=2)},
        'trainer.template: {"spec":{"a":2}} is not',
    ),
    (locking(deadlineSeconds=60), {"deadlineSeconds": 61}, "deadlineSeconds: 61 is not allowed, it is locked to 60"),
    (
        locking(environmentConfig={"use_wandb": True}),
        environment(config={"use_wandb": 1}),
        "environments.gsm8k.config.use_wandb: 1 is not allowed, it is locked to true",
    ),
    (limiting(steps=99), {}, "training.steps: 100 is more than 99, the limit of TrainingPolicy team"),
    (limiting(gpus=1), {"trainer": {"gpus": 2}}, "trainer.gpus: 2 is more than 1, the limit"),
    (limiting(gpus=8), {"trainer": {"replicas": 2, "gpus": 8}}, "trainer.gpus of all replicas: 16 is more than 8"),
    (
        limiting(gpus=4),
        {"trainer": {"gpus": 1}, "inference": {"replicas": 4}},
        "trainer.gpus and inference.gpus of all replicas: 5 is more than 4, the limit",
    ),
    (limiting(replicas=1), {}, "environments: the sum of replicas, autoscaling.max where set: 2 is more than 1"),
    (
        limiting(replicas=4),
        environment(autoscaling={"max": 5}),
        "environments: the sum of replicas, autoscaling.max where set: 5 is more than 4",
    ),
    (limiting(models=["meta/*"]), {}, "model.name: Qwen/Qwen3-8B is not among the models of TrainingPolicy team"),
    (
        limiting(images=["ghcr.io/team/*"]),
        environment(image="ghcr.io/other/x"),
        "environments.gsm8k.image: ghcr.io/other/x",
    ),
    (
        limiting(images=["ghcr.io/team/*"]),
        environment(image="ghcr-io/team/x"),
        "environments.gsm8k.image: ghcr-io/team/x",
    ),
    (limiting(images=[]), {"apiServer": container(image="x")}, "apiServer.template: x is not among the images"),
    (
        limiting(images=[]),
        {"trainer": pod(initContainers=[{"name": "i", "image": "x"}])},
        "trainer.template: x is not among the images",
    ),
    (
        limiting(images=[]),
        environment(**pod(volumes=[{"name": "v", "image": {"reference": "x"}}])),
        "environments.gsm8k.template: x is not among the images",
    ),
    (
        limiting(gpus=8),
        environment(**container(resources={"limits": {"nvidia.com/gpu": 1}})),
        "environments.gsm8k.template: devices are asked for with trainer.gpus, which TrainingPolicy team limits",
    ),
    (limiting(gpus=8), {"trainer": pod(resourceClaims=[{"name": "gpu"}])}, "trainer.template: devices are asked for"),
]


@pytest.mark.parametrize(("rules", "asked", "words"), NAMED)
def test_violations_are_reported_with_their_message(rules: Policy, asked: Body, words: str) -> None:
    found = violations(run(**asked), rules)
    assert len(found) == 1
    assert words in found[0]


ALLOWED: list[tuple[Policy, Body]] = [
    (combine([]), {"trainer": {"gpus": 64}}),
    (locking(storage={"retain": False}), {"storage": {"retain": True}}),  # the default
    (locking(training={"steps": 100, "seed": 7}), {}),
    (locking(training={"lora": {"rank": 16}}), {"training": {"steps": 1, "lora": {"rank": 32}}}),  # the default
    (locking(training={"lora": {"rank": 16}}), {"training": {"steps": 1, "lora": {"rank": 16}}}),
    (locking(training={"lora": {"alpha": 32}}), {"training": {"steps": 1, "lora": {"alpha": 32.0}}}),
    (locking(tracking={"wandb": {"project": "p"}}), {}),
    (locking(environmentConfig={"a": [1, {"b": 2.0}]}), environment(config={"a": [1.0, {"b": 2}], "c": 3})),
    (limiting(gpus=1, replicas=2, steps=100, models=["Qwen/*"], images=["ghcr.io/team/*"]), {}),
    (limiting(images=["ghcr.io/team/*"]), environment(image="ghcr.io/team/deep/x@sha256:0")),
    (limiting(gpus=0), {"trainer": {"gpus": 0} | container(resources={"limits": {"memory": "1Gi"}})}),
    (limiting(images=[], gpus=8), {"trainer": {"template": {"spec": {"containers": "nonsense", "volumes": [3]}}}}),
]


@pytest.mark.parametrize(("rules", "asked"), ALLOWED)
def test_compliant_runs_have_no_violations(rules: Policy, asked: Body) -> None:
    assert violations(run(**asked), rules) == ()


def test_everything_is_reported_at_once() -> None:
    rules = combine([policy(locked={"training": {"steps": 5, "seed": 1}}, limits={"gpus": 0, "models": ["none"]})])
    assert len(violations(run(training={"steps": 6, "seed": 2}), rules)) == 4


def test_only_changed_fields_are_violations_of_an_update() -> None:
    rules = limiting(steps=50, replicas=2)
    old = run()
    assert violations(run(stop=True), rules, old) == ()
    assert violations(run(training={"steps": 200}), rules, old) == violations(run(training={"steps": 200}), rules)
    more = environment(replicas=3)
    assert violations(run(**more), rules, old) == (
        "environments: the sum of replicas, autoscaling.max where set: 3 is more than 2, "
        "the limit of TrainingPolicy team",
    )


def test_several_policies_combine_to_the_strictest() -> None:
    both = combine(
        [
            policy("b", locked={"training": {"seed": 1}}, limits={"gpus": 4, "steps": 10, "images": ["a/*", "b/*"]}),
            policy("a", locked={"model": {"dtype": "auto"}}, limits={"gpus": 8, "activeRuns": 2, "images": ["b/*"]}),
        ]
    )
    assert both.names == ("a", "b")
    assert both.locked == {"training": {"seed": 1}, "model": {"dtype": "auto"}}
    assert (both.limits.gpus, both.limits.steps, both.limits.active_runs) == (4, 10, 2)
    for image, is_allowed in (("a/x", False), ("b/x", True), ("c/x", False)):
        found = violations(run(training={"steps": 1}, **environment(image=image)), both)
        assert (found == ()) is is_allowed


def test_policies_that_contradict_each_other_let_nothing_start() -> None:
    both = combine([policy("a", locked={"training": {"seed": 1}}), policy("b", locked={"training": {"seed": 2}})])
    assert violations(run(), both) == ("training.seed is locked to 1 by TrainingPolicy a and to 2 by TrainingPolicy b",)
    same = combine([policy("a", locked={"training": {"seed": 1}}), policy("b", locked={"training": {"seed": 1}})])
    assert violations(run(), same) == ()


@pytest.mark.parametrize(
    ("locked", "problem"),
    [
        ({"training": {"steps": "many"}}, "spec.locked.training.steps: expected `int`, got `str`"),
        ({"training": {"stepz": 1}}, "spec.locked.training: object contains unknown field `stepz`"),
        ({"environments": []}, "spec.locked: object contains unknown field `environments`"),
    ],
)
def test_a_policy_that_cannot_be_read_lets_nothing_start(locked: Body, problem: str) -> None:
    unreadable = policy(locked=locked)
    assert isinstance(unreadable, UnreadablePolicy)
    assert violations(run(), combine([unreadable])) == (f"TrainingPolicy team cannot be read: {problem}",)


def test_locked_values_are_filled_in_where_the_run_has_none() -> None:
    rules = locking(
        training={"lora": {"rank": 16}, "gradientCheckpointing": True},
        tracking={"wandb": {"project": "p", "secretName": "w"}},
        trainer={"template": {"spec": {"nodeSelector": {"pool": "gpu"}}}},
        environmentConfig={"use_wandb": True},
        deadlineSeconds=60,
    )
    filled = fill_in(run(**environment(config={"group_size": 8})), rules)
    assert (filled.training.lora.rank, filled.training.lora.alpha) == (16, 64.0)
    assert filled.training.gradient_checkpointing is True
    assert filled.tracking.wandb is not None
    assert (filled.tracking.wandb.project, filled.tracking.wandb.mode) == ("p", "online")
    assert filled.trainer.template == {"spec": {"nodeSelector": {"pool": "gpu"}}}
    assert filled.environments[0].config == {"group_size": 8, "use_wandb": True}
    assert filled.deadline_seconds == 60
    assert filled.training.steps == 100


def test_an_incomplete_locked_object_is_not_created() -> None:
    rules = locking(export={"ollama": {"url": "http://ollama:11434"}})
    assert fill_in(run(), rules).export is None
    asked = {"export": {"ollama": {"url": "http://ollama:11434", "name": "mine"}}}
    assert fill_in(run(**asked), rules) == run(**asked)
    whole = locking(export={"ollama": {"url": "http://ollama:11434", "name": "mine"}})
    export = fill_in(run(), whole).export
    assert export is not None
    assert export.ollama is not None
    assert export.ollama.name == "mine"


def test_without_locked_fields_nothing_is_touched() -> None:
    asked = run()
    assert fill_in(asked, limiting(gpus=1)) is asked


def test_every_setting_of_a_run_can_be_locked() -> None:
    names = {leaf.name for leaf in LEAVES}
    assert {"model.name", "training.steps", "training.loss.epsilonHigh", "tracking.wandb.secretName"} <= names
    assert not [name for name in names if name.split(".")[0] in ("environments", "inline", "suspend", "stop")]


def test_a_policy_reads_as_it_was_written() -> None:
    locked = {"training": {"lora": {"rank": 16}}, "environmentConfig": {"a": None}}
    read = policy(locked=locked)
    assert isinstance(read, TrainingPolicy)
    assert read.locked == locked


def test_the_example_locks_the_infrastructure_and_leaves_a_smallest_run_possible() -> None:
    example = parse(yaml.safe_load((ROOT / "examples" / "team-policy" / "training-policy.yaml").read_text()))
    assert isinstance(example, TrainingPolicy)
    rules = combine([example])
    asked = run(training={"steps": 2500})
    assert violations(asked, rules) == ()
    filled = fill_in(asked, rules)
    assert (filled.training.max_tokens, filled.training.checkpoint.every_steps, filled.training.lora.rank) == (
        9000,
        25,
        32,
    )
    assert filled.tracking.wandb is not None
    assert filled.tracking.wandb.project == "atropos-tinker"
    assert filled.environments[0].config["max_token_length"] == 8192
    assert "training.steps: 100 is not allowed, it is locked to 2500" in violations(run(), rules)[0]
