"""The card of a checkpoint is filled in, with the base and its licence, the data, the settings and the rewards."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho_contract.config import EnvironmentConfig, RunConfig, RunIdentity
from clotho_contract.inline import Dataset, Inline, Measure, Rewards
from clotho_contract.progress import HistorySample
from clotho_contract.settings import Lora, Model, Training
from clotho_trainer.model.licence import base_licence
from clotho_trainer.training.model_card import model_card

HISTORY = (HistorySample(step=1, reward_mean=0.1, loss=0.5), HistorySample(step=9, reward_mean=0.98765))


def card(licence: str = "apache-2.0", rank: int = 8, **changes: Any) -> str:
    training = Training(steps=20, learning_rate=0.01, lora=Lora(rank=rank))
    run = RunIdentity(name="sums", namespace="lab", id="a1")
    environments = (EnvironmentConfig(name="gym", entry="reasoning-gym:chain_sum"),)
    given: dict[str, Any] = {"environments": environments} | changes
    return model_card(
        RunConfig(run=run, model=Model(name="Qwen/Qwen3-8B"), training=training, **given), 9, HISTORY, licence
    )


def test_a_card_is_filled_in() -> None:
    text = card()
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head) == {
        "base_model": "Qwen/Qwen3-8B",
        "library_name": "peft",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["clotho", "reinforcement-learning", "dapo", "lora"],
    }
    for row in (
        "| licence of the base | apache-2.0 |",
        "| data | environment gym (`reasoning-gym:chain_sum`) |",
        "| steps | 9 of 20 |",
        "| learning rate | 0.01 |",
        "| 1 | 0.1 | 0.5 |",
        "| 9 | 0.9877 | - |",
    ):
        assert row in body
    assert "More Information Needed" not in text


def test_a_card_of_all_weights_trained_on_a_dataset() -> None:
    inline = Inline(dataset=Dataset(path="train.jsonl"), rewards=Rewards(measures=(Measure(name="m", entry="a:b"),)))
    text = card(licence="", rank=0, environments=(), inline=inline)
    assert "library_name: transformers" in text
    assert "| data | dataset train.jsonl |" in text
    assert "license:" not in text
    assert "| licence of the base | not known here" in text


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("---\nlicense: mit\ntags: [a]\n---\n# Base", "mit"),
        ("---\nlicense: [mit, other]\n---\n", "mit, other"),
        ("---\nlicense: {a: [}\n---\n", ""),
        ("# Base", ""),
        (None, ""),
    ],
)
def test_the_licence_is_that_of_the_bases_own_card(tmp_path: Path, text: str | None, licence: str) -> None:
    if text is not None:
        (tmp_path / "README.md").write_text(text)
    assert base_licence(Model(name=str(tmp_path))) == licence
