"""Runs without environments learn: from rewards alone, with a tool, and with a world model of the tool's answers."""

import signal
import threading
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from clotho_contract.config import ConfigError
from clotho_trainer import TrainingResult, library, train
from clotho_trainer.failures import TrainerError
from integration.trainer import tool_model

LETTERS = [{"prompt": f"{letter}>", "expected": letter} for letter in "abcdefgh"]
GENTLY: dict[str, Any] = {"learningRate": 0.005, "loss": {"entropyCoefficient": 0.0}}  # it can do something already
SUMS = [{"prompt": prompt, "expected": number} for number, prompt in enumerate(tool_model.PROMPTS)]


def run(model: Path, *, steps: int, batch: int, tokens: int, **training: Any) -> dict[str, Any]:
    return {
        "model": {"name": str(model), "dtype": "float32"},
        "inline": {"groupSize": 8, "maxCompletionTokens": tokens},
        "training": {
            "steps": steps,
            "batchSize": batch,
            "maxTokens": 64,
            "learningRate": 0.01,
            "gradientCheckpointing": False,
            "lora": {"rank": 8, "alpha": 16},
            "loss": {"entropyCoefficient": 0.05},
            **training,
        },
    }


def rise(result: TrainingResult, figure: str = "reward/mean") -> tuple[float, float]:
    values = [step[figure] for step in result.metrics]
    return fmean(values[:3]), fmean(values[-5:])


def share(output: str, expected: str) -> float:
    return sum(letter == expected for letter in output) / 8


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speaker") / "model"
    tool_model.write(folder)
    return folder


def test_a_policy_learns_from_a_reward_function(model: Path, tmp_path: Path) -> None:
    result = train(run(model, steps=45, batch=64, tokens=8), dataset=LETTERS, rewards=[share], output=tmp_path)
    before, after = rise(result)
    assert after > max(0.5, before + 0.4)
    assert result.is_finished
    assert result.final_loss is not None
    wish = {"max_new_tokens": 8, "temperature": 0.0, "repetition_penalty": 1.0}
    answers = {letter: result.generate(f"{letter}>", **wish) for letter in "abcdefgh"}
    assert sum(answer.count(letter) >= 4 for letter, answer in answers.items()) >= 5, answers
    assert (result.save_model(tmp_path / "adapter") / "adapter_model.safetensors").is_file()
    assert list(result.export(tmp_path / "exported", "gguf", quantization="f16").glob("*.gguf"))


def test_an_interrupted_training_resumes(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's Ctrl-C: what was trained is saved, and the same call goes on from there."""
    seen: list[str] = []
    asked = threading.Event()
    stop = library._Job._ask_to_stop
    monkeypatch.setattr(library._Job, "_ask_to_stop", lambda job: (stop(job), asked.set()))

    def interrupts(output: str, expected: str) -> float:
        seen.append(output)
        if len(seen) == 40:
            signal.raise_signal(signal.SIGINT)
            assert asked.wait(60)
        return 0.0

    settings = run(model, steps=8, batch=16, tokens=4)
    first = train(settings, dataset=LETTERS, rewards=[interrupts], output=tmp_path)
    assert not first.is_finished
    assert [step["step"] for step in first.metrics] == [1, 2], "the third batch was being scored"
    second = train(settings, dataset=LETTERS, rewards=[interrupts], output=tmp_path)
    assert second.is_finished
    assert [step["step"] for step in second.metrics] == [3, 4, 5, 6, 7, 8]


def test_a_config_file_of_another_trainer_is_trained_as_it_is(model: Path, tmp_path: Path) -> None:
    (tmp_path / "letters.jsonl").write_text(
        "".join(f'{{"prompt": "{letter}>", "answer": "{letter}"}}\n' for letter in "abcd")
    )
    (tmp_path / "own_rewards.py").write_text("def share(output, expected):\n    return float(expected in output)\n")
    (tmp_path / "config.yaml").write_text(f"""
model: {{base_model_name: {model}, dtype: fp32, max_new_tokens: 4, lora: {{r: 4}}}}
rl:
  training:
    per_device_train_batch_size: 2
    num_generations: 2
    num_train_epochs: 2
    learning_rate: 1e-3
    max_length: 64
    save_strategy: epoch
    reward_model: own_rewards:share
  data: {{path: letters.jsonl}}
""")
    result = train(tmp_path / "config.yaml", output=tmp_path / "out")
    assert [step["step"] for step in result.metrics] == [1, 2, 3, 4]
    assert {folder.name for folder in result.checkpoint.parent.iterdir()} == {"step-00000002", "step-00000004"}
    with pytest.raises(ConfigError, match=r"unknown field training\.steeps"):
        train({"model": {"name": "x"}, "training": {"steeps": 3}})


def test_the_reward_model_of_the_examples_is_asked_for_every_answer(model: Path, tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "reward-model" / "reward-model.yaml"
    files, manifest = yaml.safe_load_all(example.read_text())
    for name, text in files["data"].items():
        (tmp_path / name).write_text(text)
    spec = manifest["spec"]
    inline = {**spec["inline"], "dataset": {"path": str(tmp_path / "train.jsonl")}, "code": {"path": str(tmp_path)}}
    training = {**spec["training"], "steps": 2}
    settings = {"model": {**spec["model"], "name": str(model)}, "training": training, "inline": inline}
    result = train(settings, output=tmp_path / "out")
    assert [step["rewards/model/std"] > 0 for step in result.metrics] == [True, True]


def test_mistakes_in_python_are_reported_in_one_sentence(model: Path) -> None:
    with pytest.raises(TrainerError, match="nothing is rewarded"):
        train(run(model, steps=1, batch=8, tokens=4), dataset=LETTERS)
    with pytest.raises(TrainerError, match="right is 3, not a plain function"):
        train(run(model, steps=1, batch=8, tokens=4), dataset=LETTERS, rewards={"right": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"Expected `int` >= 1 - at `\$.training.steps`"):
        train(run(model, steps=0, batch=8, tokens=4), dataset=LETTERS, rewards=[share])


def test_the_policy_learns_to_use_its_tool(speaker: Path, tmp_path: Path) -> None:
    settings = run(speaker, steps=40, batch=32, tokens=24, **GENTLY)
    result = train(settings, dataset=SUMS, rewards=[tool_model.right], tools=tool_model.Desk, output=tmp_path)
    before, after = rise(result)
    assert after > max(0.7, before + 0.2), "guessing is right once in nine times"
    assert rise(result, "tools/calls_per_rollout")[1] > 0.8
    asked: dict[str, Any] = {"prompt": "x+2", "max_new_tokens": 8, "temperature": 0.0, "repetition_penalty": 1.0}
    assert "calculate" in result.generate(**asked), "the training's tool is offered"


def test_the_world_model_learns_what_the_tool_answers(speaker: Path, tmp_path: Path) -> None:
    settings = run(speaker, steps=25, batch=32, tokens=24, **GENTLY, worldModel={"coefficient": 0.01})
    result = train(settings, dataset=SUMS, rewards=[tool_model.right], tools=tool_model.Desk, output=tmp_path)
    before, after = rise(result, "world_model_loss")
    assert after < before * 0.8
    assert rise(result)[1] > max(0.6, rise(result)[0]), "and the policy still learns"
    assert rise(result, "tools/calls_per_rollout")[1] > 0.8
