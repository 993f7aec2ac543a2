"""A pod of a run without environments, from its config file to its last words: code from files, and every mistake."""

import json
import logging
import textwrap
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from clotho_contract import history
from clotho_contract.config import RunConfig, render
from clotho_contract.inline import Code, Dataset, Inline, Measure, RewardFunction, Rewards, Tools
from clotho_contract.settings import Wandb, WorldModel
from clotho_dev.ports import free_port
from clotho_trainer.process.app import Options, train
from integration.trainer.tiny import config

CODE = """
    import os, signal

    calls = []

    def share(output, expected):
        calls.append(expected)
        return sum(letter == expected for letter in output) / 4

    def brief(completions, **_):
        return [float(len(text) <= 2) for text in completions]

    def raises(output, expected):
        return {}[expected]

    def nothing(output, expected):
        return float("nan")

    def few(completions, **_):
        return [1.0]

    def stop(output, expected):
        if len(calls) >= 20:
            os.kill(os.getpid(), signal.SIGTERM)
        return share(output, expected)
"""


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOTHO_TOKEN", raising=False)
    monkeypatch.setenv("CLOTHO_DATA", str(tmp_path / "data"))


@pytest.fixture
def module(tmp_path: Path) -> str:
    name = f"rewards_{abs(hash(tmp_path))}"  # a module is imported once in this process
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(CODE))
    rows = [{"prompt": f"{letter}>", "expected": letter} for letter in "abcdefghij"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def inline(tmp_path: Path, rewards: Rewards, **changes: Any) -> Inline:
    fields: dict[str, Any] = {
        "dataset": Dataset(path=str(tmp_path / "train.jsonl")),
        "code": Code(path=str(tmp_path)),
        "rewards": rewards,
        "group_size": 4,
        "max_completion_tokens": 4,
    }
    return Inline(**(fields | changes))


def options(tmp_path: Path, settings: RunConfig) -> Options:
    path = tmp_path / "run.yaml"
    path.write_text(render(settings))
    return Options(path, "127.0.0.1", free_port(), free_port())


def measure(module: str, function: str = "share") -> Rewards:
    return Rewards(measures=(Measure(name="only", entry=f"{module}:{function}"),))


async def test_a_run_resumes_at_its_place_in_the_dataset(
    module: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rewards = Rewards(
        model=f"{module}:share", functions=(RewardFunction(name="brief", entry=f"{module}:brief", weight=0.1),)
    )
    one = structs.replace(
        config(model, steps=2, batch_size=10), inline=inline(tmp_path, rewards), wandb=Wandb(mode="offline")
    )
    end = await train(options(tmp_path, one))
    assert (end.reason, end.step) == ("Finished", 2), end.message
    folder = tmp_path / "data" / "checkpoints"
    summary = json.loads((folder / "step-00000002" / "training_config.json").read_text())
    assert summary["source"]["position"] == 6, "batchSize 10 was raised to 12, three prompts a step"
    assert summary["config"]["training"]["batchSize"] == 12

    dataset = Dataset(path=str(tmp_path / "train.jsonl"), epochs=1)
    two = structs.replace(
        one, inline=inline(tmp_path, rewards, dataset=dataset), training=structs.replace(one.training, steps=99)
    )
    end = await train(options(tmp_path, two))
    assert (end.reason, end.message) == ("Finished", "all 4 steps are done and saved"), "ten prompts, three a step"
    assert end.progress is not None
    assert end.progress.total_steps == 4
    summary = json.loads((folder / "step-00000004" / "training_config.json").read_text())
    assert summary["source"] == {"position": 10, "running": {}}
    lines = [json.loads(line) for line in (tmp_path / "data" / "metrics.jsonl").read_text().splitlines() if line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    left = history.decode(json.dumps(caplog.records[-1].__dict__["history"]))
    assert left.series.steps == (1, 2, 3, 4), "what was not fetched, the steps before the restart included"
    assert {"rewardMean", "rewardStd", "entropy", "secondsSampling", "gradientNorm"} <= left.series.figures.keys()
    assert {group.kind for group in left.samples} == {"newest", "best", "worst"}
    assert left.samples[0].answers[0].reward is not None
    seen = __import__(module).calls
    assert [seen.count(letter) for letter in "abcdefghij"] == [4] * 10, "each prompt once in the pass"


async def test_a_stop_in_the_middle_of_a_batch_saves_what_was_trained(module: str, model: Path, tmp_path: Path) -> None:
    settings = structs.replace(config(model, steps=50), inline=inline(tmp_path, measure(module, "stop")))
    end = await train(options(tmp_path, settings))
    assert end.reason == "Stopped"
    assert end.step is not None
    assert 0 < end.step < 50
    assert (tmp_path / "data" / "checkpoints" / f"step-{end.step:08d}").is_dir()


async def test_status_is_served_and_inference_only_with_a_token(module: str, model: Path, tmp_path: Path) -> None:
    settings = structs.replace(config(model, steps=1), inline=inline(tmp_path, measure(module)))
    chosen = options(tmp_path, settings)
    seen: dict[str, Any] = {}

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "step 1 of 1" in record.getMessage():
                seen["figures"] = record.__dict__

    handler = Watching()
    logging.getLogger("clotho_trainer.training.loop").addHandler(handler)
    logging.getLogger("clotho_trainer.training.loop").setLevel(logging.INFO)
    try:
        end = await train(chosen)
    finally:
        logging.getLogger("clotho_trainer.training.loop").removeHandler(handler)
    assert end.reason == "Finished", end.message
    assert "rewards/only/mean" in seen["figures"]
    assert seen["figures"]["epoch"] == 0.2, "two of ten prompts"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"http://127.0.0.1:{chosen.inference_port}/health")


@pytest.mark.parametrize(
    ("function", "kind", "reason", "sentence"),
    [
        ("raises", "measure", "EnvironmentFailed", "the reward only raised KeyError: "),
        ("nothing", "measure", "InvalidConfig", "the reward only returned nan, for line "),
        ("few", "function", "InvalidConfig", "the reward only returned 1 values for 4 completions, for line "),
        ("absent", "measure", "InvalidConfig", "inline.rewards.measures, only: "),
    ],
)
async def test_a_reward_that_fails_ends_the_run_with_its_name_and_record(
    function: str, kind: str, reason: str, sentence: str, module: str, model: Path, tmp_path: Path
) -> None:
    rewards = measure(module, function)
    if kind == "function":
        rewards = Rewards(functions=(RewardFunction(name="only", entry=f"{module}:{function}"),))
    end = await train(options(tmp_path, structs.replace(config(model), inline=inline(tmp_path, rewards))))
    assert (end.reason, end.step or 0) == (reason, 0)
    assert end.message.startswith(sentence)


async def test_tools_are_refused_for_a_chat_template_without_them(module: str, model: Path, tmp_path: Path) -> None:
    tools = Tools(functions=(f"{module}:share",))
    settings = structs.replace(config(model), inline=inline(tmp_path, measure(module), tools=tools))
    end = await train(options(tmp_path, settings))
    assert end.reason == "InvalidConfig"
    assert "leaves out the tool share" in end.message


async def test_a_world_model_without_tools_is_refused(module: str, model: Path, tmp_path: Path) -> None:
    echo = config(model, world_model=WorldModel(coefficient=0.1))
    end = await train(options(tmp_path, structs.replace(echo, inline=inline(tmp_path, measure(module)))))
    assert end.reason == "InvalidConfig"
    assert end.message.startswith("training.worldModel.coefficient: without inline.tools there are no tool results")
