"""Runs without environments: a dataset and the user's Python, in a whole trainer of this process."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from clotho_contract.config import RunConfig, render
from clotho_contract.inline import Code, Dataset, Inline, Measure, RewardFunction, Rewards
from clotho_contract.settings import Loss
from clotho_trainer.app import Options, train
from integration.trainer.ports import free_port
from integration.trainer.tiny import config

REWARDS = """
    def share(output, expected):
        return sum(letter == expected for letter in output) / 8

    def short(completions, **_):
        return [float(len(text) <= 8) for text in completions]

    def raises(output, expected):
        return {}["missing"]

    def not_a_number(output, expected):
        return float("nan")

    def too_few(completions, **_):
        return [1.0]

    def vague(output):
        return 0.5
"""


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOTHO_TOKEN", raising=False)
    monkeypatch.setenv("CLOTHO_DATA", str(tmp_path / "data"))


def options(settings: RunConfig, tmp_path: Path) -> Options:
    path = tmp_path / "run.yaml"
    path.write_text(render(settings))
    return Options(path, "127.0.0.1", free_port(), free_port())


def letters(tmp_path: Path, **changes: Any) -> Inline:
    (tmp_path / "code").mkdir(exist_ok=True)
    module = f"rewards_{tmp_path.name}"  # modules are imported once a process
    (tmp_path / "code" / f"{module}.py").write_text(textwrap.dedent(REWARDS))
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{c}>", "expected": c}) + "\n" for c in "abcdefgh"))
    fields: dict[str, Any] = {
        "dataset": Dataset(path=str(data)),
        "code": Code(path=str(tmp_path / "code")),
        "rewards": Rewards(measures=(Measure(name="share", entry=f"{module}:share"),)),
        "group_size": 8,
        "max_completion_tokens": 8,
    }
    return Inline(**(fields | changes))


def run(model: Path, inline: Inline, **training: Any) -> RunConfig:
    fields: dict[str, Any] = {"batch_size": 64, "loss": Loss(entropy_coefficient=0.05)}
    return structs.replace(config(model, **(fields | training)), inline=inline)


async def test_reward_rises(model: Path, tmp_path: Path) -> None:
    end = await train(options(run(model, letters(tmp_path), steps=60), tmp_path))
    assert (end.reason, end.step) == ("Finished", 60), end.message
    assert end.progress is not None
    rewards = [sample.reward_mean or 0.0 for sample in end.progress.history]
    assert rewards[-1] > max(0.6, 2 * rewards[0])
