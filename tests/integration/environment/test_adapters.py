"""Environments of reasoning-gym and verifiers, through `process` and a stand-in for the policy."""

import json
from pathlib import Path

import pytest

from clotho_environment.entries import EntryError, find_entry
from integration.environment.commands import command
from integration.environment.stand_ins import InferenceStandIn, started

EXAMPLE = Path(__file__).parents[3] / "examples" / "verifiers" / "letters_v1.py"


@pytest.fixture
async def inference():
    stand_in = InferenceStandIn()
    async with started(stand_in):
        yield stand_in


def process(folder, inference, entry, *settings):
    fields = [argument for setting in settings for argument in ("--set", setting)]
    arguments = ["--entry", entry, "--base-url", inference.url, "--tokens", "--groups", "2"]
    return command(folder, "process", *arguments, *fields)


async def groups_of(running):
    assert await running.wait() == 0, running.log
    return [json.loads(line) for line in running.output.splitlines()]


async def test_reasoning_gym_scores_what_stands_between_the_tags(tmp_path, inference):
    pytest.importorskip("reasoning_gym", reason="the extra environment-reasoning-gym is not installed")
    inference.reply = lambda _: "I count. <answer>1</answer>"
    settings = ["group_size=2", "task_config={min_words: 1, max_words: 1}"]
    async with process(tmp_path, inference, "reasoning-gym:letter_counting", *settings) as running:
        groups = await groups_of(running)
    assert {score for group in groups for score in group["scores"]} <= {0.0, 1.0}
    assert groups[0]["messages"][0][0]["role"] == "system"
    assert groups[0]["messages"][0][-1] == {"role": "assistant", "content": "I count. <answer>1</answer>"}


def test_an_unknown_reasoning_gym_task_is_refused_with_similar_names():
    pytest.importorskip("reasoning_gym", reason="the extra environment-reasoning-gym is not installed")
    with pytest.raises(EntryError, match="no task 'leg_countin'; did you mean leg_counting"):
        find_entry("reasoning-gym:leg_countin")


async def test_reasoning_gym_settings_that_do_not_fit_are_an_error(tmp_path, inference):
    pytest.importorskip("reasoning_gym", reason="the extra environment-reasoning-gym is not installed")
    async with process(tmp_path, inference, "reasoning-gym:letter_counting", "task_config={words: 1}") as running:
        assert await running.wait() == 1
    assert running.termination_message["reason"] == "EnvironmentFailed"
    assert "'words'" in running.termination_message["message"]


async def test_a_verifiers_taskset_is_played_and_scored_by_its_own_rewards(tmp_path, inference):
    pytest.importorskip("verifiers", reason="the extra environment-verifiers is not installed")
    inference.reply = lambda prompt: "AB" if "ab" in prompt else prompt
    async with process(tmp_path, inference, "verifiers:shout-v1", "group_size=2", "max_tokens=5") as running:
        groups = await groups_of(running)
    assert sorted(tuple(group["scores"]) for group in groups) == [(0.0, 0.0), (1.0, 1.0)]
    (missed,) = [group for group in groups if group["scores"] == [0.0, 0.0]]
    assert missed["masks"] == [[-100] * len("say ab") + [ord("A"), ord("B")]] * 2
    assert missed["generation_params"] == {"policy_version": 3}
    assert inference.bodies[0]["max_tokens"] == 5
    assert inference.bodies[0]["messages"][0] == {"role": "system", "content": "be loud"}


async def test_a_verifiers_taskset_may_be_a_file(tmp_path, inference):
    """As in a ConfigMap, where nothing is installed."""
    pytest.importorskip("verifiers", reason="the extra environment-verifiers is not installed")
    inference.reply = lambda prompt: "b" * 8 if "b>" in prompt else "a"
    settings = ["group_size=2", "taskset_config={letters: ab}"]
    async with process(tmp_path, inference, f"verifiers:{EXAMPLE}", *settings) as running:
        groups = await groups_of(running)
    assert sorted(tuple(group["scores"]) for group in groups) == [(0.125, 0.125), (1.0, 1.0)]


async def test_an_unknown_verifiers_taskset_is_named(tmp_path, inference):
    pytest.importorskip("verifiers", reason="the extra environment-verifiers is not installed")
    async with process(tmp_path, inference, "verifiers:no-such-taskset") as running:
        assert await running.wait() == 1
    assert "verifiers has no taskset no-such-taskset" in running.termination_message["message"]
