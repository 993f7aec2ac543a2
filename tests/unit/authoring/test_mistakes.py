"""Mistakes in a spec are explained in plain words."""

from typing import Any

import msgspec
import pytest

from clotho.api.training_run import TrainingRunSpec
from clotho.authoring.mistakes import mistakes_in, spell_out


def explained(**changes: Any) -> str:
    spec = {"model": {"name": "m"}, "training": {"steps": 1}, "environments": [{"name": "echo"}], **changes}
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(spec, TrainingRunSpec)
    mistake = spell_out(error.value, spec, TrainingRunSpec)
    return f"{mistake.path}: {mistake.problem}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": {"stepz": 1}}, "training.stepz: no such field; did you mean steps?"),
        ({"zzz": 1}, "zzz: no such field"),
        ({"training": {}}, "training.steps: it is missing"),
        ({"training": {"steps": "80"}}, 'training.steps: must be a whole number of at least 1, not "80"'),
        ({"training": {"steps": -80}}, "training.steps: must be a whole number of at least 1, not -80"),
        (
            {"trainer": {"gpus": 65}},
            "trainer.gpus: must be a whole number of at least 0 and of at most 64, not 65",
        ),
        (
            {"training": {"steps": 1, "learningRate": "fast"}},
            'training.learningRate: must be a number greater than 0, not "fast"',
        ),
        ({"suspend": "no"}, 'suspend: must be true or false, not "no"'),
        (
            {"model": {"name": "m", "dtype": "float3"}},
            'model.dtype: must be one of auto, bfloat16, float16, float32, not "float3"',
        ),
        ({"model": {"name": ""}}, 'model.name: must be a text of at least 1 characters, not ""'),
        ({"model": None}, "model: must be an object with fields, not null"),
        ({"environments": []}, "environments: must be a list of at least 1 entries, not []"),
        (
            {"environments": [{"name": "echo", "replicas": "two"}]},
            'environments[0].replicas: must be a whole number of at least 0, not "two"',
        ),
        ({"storage": {"size": "big"}}, 'storage.size: must be a size such as 10Gi, not "big"'),
        ({"storage": {"claimName": "A b"}}, "storage.claimName: must be the name of an object: lower-case letters"),
        ({"environments": [{"name": "A_1"}]}, "environments[0].name: must be a name of lower-case letters, digits and"),
        (
            {"environments": [{"name": "a", "egress": [{"cidr": "1.2.3"}]}]},
            'environments[0].egress[0].cidr: must be a network such as 203.0.113.0/24, not "1.2.3"',
        ),
        (
            {"environments": [{"name": "a", "requirements": ["x"]}]},
            "environments[0].requirements[0]: must be a line such as rapidfuzz==3.14.5 --hash=sha256:...",
        ),
    ],
)
def test_errors_are_explained_with_path_and_expected_value(changes: dict[str, Any], words: str) -> None:
    assert explained(**changes).startswith(words)


def test_messages_of_custom_types_are_kept() -> None:
    words = explained(model={"name": "ollama/qwen3:8b"})
    assert words.startswith("model: ollama/qwen3:8b is a name of Ollama's library")


def test_long_values_are_cut() -> None:
    assert len(explained(suspend="x" * 1000)) < 120


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({}, []),
        ({"training": {"stepz": 80}}, ["training.stepz"]),
        (
            {"training": {"steps": 0, "learningRate": -1, "stepz": 3}, "model": {"name": "m", "dtype": "x"}, "zzz": 1},
            ["model.dtype", "training.learningRate", "training.steps", "training.stepz", "zzz"],
        ),
        (
            {"environments": [{"name": "a", "replicas": "two"}, {"replicas": -1}, {"name": "B"}], "suspend": "no"},
            ["environments[0].replicas", "environments[1].name", "environments[1].replicas"],
        ),
        ({"environments": ["a", {"name": "b", "replicas": "x"}]}, ["environments[0]"]),
        ({"model": {"name": "ollama/qwen3:8b"}, "training": {"steps": 0}}, ["model", "training.steps"]),
        (
            {"storage": {"size": "big", "retain": 3}, "export": {"formats": ["a", "b"]}},
            ["export.formats[0]", "export.formats[1]", "storage.retain", "storage.size"],
        ),
    ],
)
def test_all_mistakes_are_found_at_once(changes: dict[str, Any], paths: list[str]) -> None:
    spec = {"model": {"name": "m"}, "training": {"steps": 1}, "environments": [{"name": "echo"}], **changes}
    found = [each.path for each in mistakes_in(spec, TrainingRunSpec)]
    assert sorted(found) == paths
