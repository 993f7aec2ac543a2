"""Mistakes in a spec are explained in plain words."""

from typing import Any

import msgspec
import pytest

from clotho.api.training_run import TrainingRunSpec
from clotho.authoring.mistakes import spell_out


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
        ({"storage": {"size": "big"}}, "storage.size: must be a text that matches ^[1-9]"),
    ],
)
def test_errors_are_explained_with_path_and_expected_value(changes: dict[str, Any], words: str) -> None:
    assert explained(**changes).startswith(words)


def test_messages_of_custom_types_are_kept() -> None:
    words = explained(model={"name": "ollama/qwen3:8b"})
    assert words.startswith("model: ollama/qwen3:8b is a name of Ollama's library")


def test_long_values_are_cut() -> None:
    assert len(explained(suspend="x" * 1000)) < 120
