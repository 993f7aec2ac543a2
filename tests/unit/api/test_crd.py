"""The CRD is what the types say, small enough for plain `kubectl apply`, and explains itself."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clotho.api.crd import crd, file_name, render
from clotho.api.definitions import DEFINITIONS, INFERENCE_TEST, TRAINING_RUN, Definition
from clotho.api.phases import Phase
from clotho.api.status import TrainingRunStatus
from clotho.api.training_run import TrainingRun, TrainingRunSpec, UnreadableRun, parse
from clotho.api.validation import problems
from unit.render.cases import CASES, run_of

CRDS = Path(__file__).parents[3] / "crds"
VERSION = crd(TRAINING_RUN)["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]
SPEC = ROOT["properties"]["spec"]
Body = dict[str, Any]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_the_files_are_up_to_date(definition: Definition) -> None:
    assert (CRDS / file_name(definition)).read_text() == render(definition), "run `make crds`"


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_crds_are_far_below_the_client_side_apply_limit(definition: Definition) -> None:
    assert len(render(definition)) < 131_072, "kubectl keeps a copy of at most 262,144 bytes"


def test_the_readme_has_the_size_of_the_crd() -> None:
    readme = (CRDS.parent / "README.md").read_text()
    assert f"| size of the CRD | {round(len(render(TRAINING_RUN)), -4) // 1000} KB |" in readme


def fields(schema: Body, path: str) -> Iterator[tuple[str, Body]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from fields(inner.get("items", inner), f"{path}.{name}")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_every_field_of_the_spec_is_explained(definition: Definition) -> None:
    spec = crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert [path for path, schema in fields(spec, "spec") if "description" not in schema] == []


def test_only_model_and_training_steps_are_required() -> None:
    assert SPEC["required"] == ["model", "training"], "and environments, unless the run is inline"
    assert SPEC["properties"]["training"]["required"] == ["steps"]
    assert SPEC["properties"]["model"]["required"] == ["name"]


def test_defaults_of_the_schema_are_those_of_the_types() -> None:
    """What the API server fills in and what the operator assumes must be the same."""
    filled = with_defaults(SPEC, CASES["smallest"])
    assert msgspec.convert(filled, TrainingRunSpec) == run_of(CASES["smallest"]).spec


def with_defaults(schema: Body, value: Any) -> Any:
    if isinstance(value, list):
        return [with_defaults(schema["items"], each) for each in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, inner in schema.get("properties", {}).items():
        if name not in filled and "default" in inner:
            filled[name] = inner["default"]
        if name in filled:
            filled[name] = with_defaults(inner, filled[name])
    return filled


def test_a_new_run_is_in_progress() -> None:
    assert ROOT["properties"]["status"]["default"] == {"observedGeneration": -1, "phase": "Pending"}
    described = ROOT["properties"]["status"]["properties"]
    assert [name for name, schema in described.items() if "default" in schema] == ["phase", "attempt", "restarts"]
    assert VERSION["subresources"] == {"status": {}}


def test_columns_and_names() -> None:
    shown = [column["name"] for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    assert shown == ["Phase", "Ready", "Step", "Reward", "Restarts", "Age", "Message"]
    assert crd(TRAINING_RUN)["spec"]["names"]["shortNames"] == ["tr"]


def test_every_training_setting_but_steps_is_immutable() -> None:
    assert fixed_below("training.") == set(SPEC["properties"]["training"]["properties"]) - {"steps"}


def test_every_other_field_is_immutable_unless_it_is_meant_to_change() -> None:
    changeable = {
        "environments",
        "inference",
        "training",
        "restarts",
        "export",
        "suspend",
        "stop",
        "deadlineSeconds",
        "ttlSecondsAfterFinished",
    }
    messages = [rule["message"] for rule in ROOT["x-kubernetes-validations"] if " are immutable: " in rule["message"]]
    sentence = messages[0].partition(": ")[2].replace("time limits", "deadlineSeconds, ttlSecondsAfterFinished")
    sentence = sentence.replace("replicas", "environments[].replicas, inference.replicas")
    assert [name for name in changeable if name not in sentence] == [], "it leaves none out"
    assert fixed_below("") == set(SPEC["properties"]) - changeable
    environment = SPEC["properties"]["environments"]["items"]
    assert fixed_below("environments[].") == set(environment["properties"]) - {"name", "replicas", "autoscaling"}
    assert fixed_below("inference.") == set(SPEC["properties"]["inference"]["properties"]) - {"replicas"}


def fixed_below(path: str) -> set[str]:
    """The fields right below it that are fixed once the trainer has started."""
    listed = (rule["message"].partition(" are immutable: ") for rule in ROOT["x-kubernetes-validations"])
    named = {name for names, found, _ in listed if found for name in names.split(", ")}
    return {name.removeprefix(path) for name in named if re.fullmatch(rf"{re.escape(path)}\w+", name)}


def test_few_rules_read_the_spec_when_only_the_status_is_written() -> None:
    """Each field that a rule reads costs the API server a copy of the schemas around it, in every status write."""
    comparing = [rule["rule"] for rule in ROOT["x-kubernetes-validations"] if "oldSelf.spec" in rule["rule"]]
    assert len(comparing) < 10
    may_change = "self.status.?writtenAt != oldSelf.status.?writtenAt || "
    assert [rule for rule in comparing if not rule.startswith((may_change, "!(self.status.phase in "))] == []


def test_a_test_without_an_environment_must_have_an_entry() -> None:
    spec = crd(INFERENCE_TEST)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    (rule,) = [rule for rule in spec["x-kubernetes-validations"] if "entry is missing" in rule["message"]]
    assert rule["fieldPath"] == ".entry"
    assert "image" not in rule["rule"], "neither an image nor files alone say what to run"


@pytest.mark.parametrize("case", CASES)
def test_good_specs_have_no_problems(case: str) -> None:
    assert problems("demo", run_of(CASES[case]).spec) == ()


SHARDED = {"gpus": 2, "sharding": "fsdp"}
FULL = {"steps": 1, "lora": {"rank": 0}}
VLLM_SERVER = {"mode": "server", "url": "http://vllm", "adapterPath": "/adapters"}
BAD: list[tuple[Body, str]] = [
    (
        {"training": {"steps": 1, "batchSize": 130}},
        "130 is not a multiple of group_size 4 (environment letters); use 128 or 132",
    ),
    ({"training": {"steps": 1, "batchSize": 2}}, "2 is not a multiple of group_size 4 (environment letters); use 4"),
    ({"training": {"steps": 1, "microBatchSize": 48}}, "training.microBatchSize: 48 does not divide batchSize 128"),
    ({"training": {"steps": 1, "backend": "tinker"}}, "trainer.tinkerSecretName is needed by training.backend tinker"),
    ({"training": {"steps": 1, "loss": {"epsilonHigh": 0}}}, "training.loss.epsilonHigh must be greater than 0"),
    (
        {"training": {"steps": 1, "loss": {"type": "cispo", "epsilonHigh": 0.28}}},
        "training.loss.epsilonHigh of cispo is the largest",
    ),
    ({"model": {"name": "m", "quantization": "nf4"}, "trainer": {"gpus": 0}}, "nf4 needs trainer.gpus of at least 1"),
    (
        {
            "model": {"name": "m", "quantization": "fp8"},
            "training": {"steps": 1, "batchSize": 4, "lora": {"rank": 0}},
        },
        "model.quantization fp8 needs trainer.gpus of at least 1 and training.lora.rank of at least 1",
    ),
    (
        {"training": {"steps": 1, "backend": "tinker"}, "trainer": {"replicas": 2, "tinkerSecretName": "t"}},
        "training.backend tinker trains on the Tinker service: trainer.replicas must be 1 and trainer.gpus at most 1",
    ),
    (
        {"inference": {"engine": "transformers", "kvCacheDtype": "fp8"}},
        "inference.kvCacheDtype fp8 needs inference.engine auto or fast",
    ),
    ({"inference": {"engine": "vllm"}, "trainer": {"gpus": 2}}, "inference.engine vllm serves one rank"),
    (
        {"inference": {"engine": "vllm", "vllm": {"tensorParallel": 2}}, "trainer": {"replicas": 2, "gpus": 2}},
        "inference.engine vllm serves one rank",
    ),
    (
        {
            "training": {"steps": 1, "backend": "tinker"},
            "trainer": {"tinkerSecretName": "t"},
            "inference": {"replicas": 1},
        },
        "training.backend tinker serves the policy by itself: inference.replicas must be 0",
    ),
    (
        {"inference": {"replicas": 1, "engine": "vllm", "vllm": {"mode": "server"}}},
        "with inference.vllm.mode server, inference.replicas must be 0",
    ),
    (
        {"training": FULL, "inference": {"engine": "vllm", "vllm": VLLM_SERVER}},
        "inference.vllm.mode server serves adapters only: training.lora.rank must be at least 1",
    ),
    ({"inference": {"gpus": 2}}, "inference.gpus: a replica uses one GPU at most"),
    ({"inference": {"gpus": 1, "engine": "vllm", "vllm": {"tensorParallel": 2}}}, "inference.gpus: a replica uses one"),
    (
        {"model": {"name": "m", "quantization": "nf4"}, "inference": {"replicas": 1, "gpus": 0}},
        "inference.gpus must be at least 1 with model.quantization",
    ),
    (
        {"trainer": {"gpus": 1, "sharding": "fsdp"}, "inference": {"replicas": 1}},
        "trainer.sharding fsdp spreads the model over ranks: trainer.replicas or trainer.gpus must be above 1",
    ),
    ({"trainer": SHARDED}, "trainer.sharding fsdp leaves no rank that can generate"),
    (
        {"trainer": SHARDED, "inference": {"engine": "vllm"}},
        "trainer.sharding fsdp leaves no rank that can generate",
    ),
    (
        {"trainer": SHARDED, "inference": {"replicas": 1}, "model": {"name": "m", "quantization": "nf4"}},
        "trainer.sharding fsdp cannot spread quantised weights",
    ),
    (
        {"trainer": SHARDED, "inference": {"replicas": 1}, "model": {"name": "m", "dtype": "float16"}},
        "trainer.sharding fsdp cannot train in float16",
    ),
    ({"storage": {"claimName": "c", "ephemeral": True}}, "storage.claimName and storage.ephemeral exclude each other"),
    ({"tracking": {"wandb": {}}}, "tracking.wandb.secretName is needed in mode online"),
    ({"environments": [{"name": "a"}, {"name": "a"}]}, "environments: a appears more than once"),
    ({"environments": [{"name": "a", "config": {"group_size": "4"}}]}, "group_size: '4' is not a number of at least 1"),
    ({"environments": [{"name": "a", "config": {"group_size": 0}}]}, "group_size: 0 is not a number of at least 1"),
    (
        {"environments": [{"name": n, "minBatchAllocation": 0.6} for n in "ab"]},
        "the minBatchAllocation of all must not add up to more than 1",
    ),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_bad_specs_are_refused_with_the_reason(changes: Body, words: str) -> None:
    found = problems("demo", run_of(CASES["smallest"] | changes).spec)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize("trainer", [{"replicas": 2}, {"gpus": 2}])
def test_an_inline_run_has_one_rank(trainer: Body) -> None:
    found = problems("demo", run_of(CASES["inline"] | {"trainer": trainer}).spec)
    assert [problem.split(":")[0] for problem in found] == ["inline runs train on one rank"]


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, 1),
        ({"trainer": {"gpus": 0, "replicas": 3}}, 3),
        ({"trainer": {"gpus": 8, "replicas": 2}}, 16),
        ({"trainer": {"gpus": 8}, "inference": {"engine": "transformers"}}, 8),
        ({"trainer": {"gpus": 2}, "inference": {"engine": "vllm", "vllm": {"tensorParallel": 2}}}, 1),
        ({"trainer": SHARDED, "inference": {"replicas": 1}}, 2),
        ({"trainer": SHARDED, "inference": {"engine": "vllm", "replicas": 1, "vllm": {"tensorParallel": 4}}}, 2),
        ({"trainer": SHARDED, "inference": {"engine": "vllm", "vllm": VLLM_SERVER}}, 2),
        ({"trainer": SHARDED, "inference": {"engine": "vllm", "replicas": 2}, "training": FULL}, 2),
    ],
)
def test_replicas_and_gpus_give_the_ranks(changes: Body, ranks: int) -> None:
    spec = run_of(CASES["smallest"] | changes).spec
    assert problems("demo", spec) == ()
    assert spec.topology.size == ranks


@pytest.mark.parametrize("name", ["Demo", "8b", "a.b", "a" * 64, "a-"])
def test_names_that_cannot_be_host_names(name: str) -> None:
    assert "metadata.name" in problems(name, run_of(CASES["smallest"]).spec)[0]


def test_all_problems_are_reported_at_once() -> None:
    training = {"steps": 1, "batchSize": 130, "microBatchSize": 48, "backend": "tinker"}
    assert len(problems("demo", run_of(CASES["smallest"] | {"training": training}).spec)) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": {"steps": 0}}, "spec.training.steps: expected `int` >= 1"),
        ({"training": {"steps": "1"}}, "spec.training.steps: expected `int`, got `str`"),
        ({"training": {"stepz": 1}}, "spec.training: object contains unknown field `stepz`"),
        ({"environments": []}, "spec.environments: expected `array` of length >= 1"),
        ({"model": None}, "spec.model: expected `object`, got `null`"),
    ],
)
def test_a_spec_of_another_shape_is_unreadable_with_its_place(changes: Body, words: str) -> None:
    run = parse({"metadata": {"name": "demo"}, "spec": CASES["smallest"] | changes})
    assert isinstance(run, UnreadableRun)
    assert run.problem == words


def test_a_missing_spec_is_unreadable_too() -> None:
    run = parse({"metadata": {"name": "demo"}})
    assert isinstance(run, UnreadableRun)
    assert run.problem == "spec: object missing required field `model`"


def test_a_broken_status_is_derived_again() -> None:
    run = parse({"metadata": {"name": "demo"}, "spec": CASES["smallest"], "status": {"phase": 7}})
    assert isinstance(run, TrainingRun)
    assert run.status == TrainingRunStatus()


def test_phases_of_the_schema_and_of_the_types_agree() -> None:
    assert set(ROOT["properties"]["status"]["properties"]["phase"]["enum"]) == set(Phase.__args__)  # type: ignore[attr-defined]
