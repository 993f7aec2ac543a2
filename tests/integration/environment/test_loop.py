"""A policy learns from foreign environments: an Atropos file and reasoning-gym, through the real three processes."""

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from clotho_contract.config import EnvironmentConfig
from clotho_environment import Conversation, SamplingClient
from clotho_environment.clients.connections import open_session
from integration.environment.commands import ENVIRONMENTS
from integration.loop.processes import TOKEN, Ports, Run, letters_config, serving, tiny_model
from rig.trajectory_servers import ToolUnavailableError, atropos_python

pytestmark = pytest.mark.timeout(900)  # several interpreters import torch and transformers: slow on a busy machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@contextmanager
def running(folder: Path, model: Path, place: EnvironmentConfig, **training: Any) -> Iterator[Run]:
    ports = Ports()
    config = letters_config(model, ports)
    config = msgspec.structs.replace(
        config, environments=(place,), training=msgspec.structs.replace(config.training, **training)
    )
    with serving(config, ports, folder) as run:
        yield run


def learn(run: Run) -> list[float]:
    run.start("environment")
    assert run.wait("trainer", timeout=600) == 0, run.tail("trainer") + run.tail("environment")
    assert run.wait("environment", timeout=60) == 0, run.tail("environment")
    assert run.termination("environment")["reason"] == "Finished"
    assert TOKEN not in (run.folder / "environment.log").read_text()
    rewards = [reward for _, reward in run.steps()]
    print({"first_five": round(mean(rewards[:5]), 3), "last_five": round(mean(rewards[-5:]), 3)})
    return rewards


def groups_with_a_version(run: Run) -> float:
    """How many delivered groups have a policy version: only those have a staleness to observe."""
    with urllib.request.urlopen(f"{run.config.endpoints.api_server}/metrics", timeout=10) as answer:  # noqa: S310 - loopback
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "clotho_api_staleness_steps_count")


async def converse(run: Run) -> Conversation:
    async with open_session(TOKEN) as session:
        client = SamplingClient(session, run.config.endpoints.inference, model=run.config.model.name)
        conversation = client.conversation([{"role": "user", "content": "guess"}], max_tokens=3)
        await conversation.reply()
        conversation.say("wrong")
        await conversation.reply()
    return conversation


def test_several_turns_of_a_conversation_are_one_sequence(model: Path, tmp_path: Path) -> None:
    """Unless a special token was sampled: text cannot carry it, so the template cannot repeat it."""
    with running(tmp_path, model, EnvironmentConfig(name="letters", entry="letters")) as run:
        conversations = [asyncio.run(converse(run)) for _ in range(12)]
    for conversation in conversations:
        first, last = conversation.turns
        assert conversation.sequence.tokens == last.prompt_tokens + last.tokens
        assert conversation.sequence.trained.count(True) in (len(last.tokens), len(first.tokens) + len(last.tokens))
    assert any(c.sequence.trained.count(True) == sum(len(t.tokens) for t in c.turns) for c in conversations)


def test_policy_learns_from_an_unchanged_atropos_environment(model: Path, tmp_path: Path) -> None:
    try:
        python = atropos_python()
    except ToolUnavailableError as error:
        pytest.skip(f"atroposlib cannot be installed here: {error}")
    place = EnvironmentConfig(
        name="letters",
        entry=f"atropos:{ENVIRONMENTS / 'atropos_letters.py'}",
        config={"group_size": 16, "ensure_scores_are_not_same": False},
    )
    with running(tmp_path, model, place) as run:
        run.extra_environment["CLOTHO_ATROPOS_PYTHON"] = str(python)
        rewards = learn(run)
        groups = groups_with_a_version(run)
    assert mean(rewards[:5]) < 0.2
    assert mean(rewards[-5:]) > 0.8
    assert groups >= len(rewards) * run.config.training.batch_size / 16, "every group has a policy version"


def test_policy_learns_a_reasoning_gym_task(model: Path, tmp_path: Path) -> None:
    """Most texts have the letter once: the policy finds out that `1` is mostly right."""
    pytest.importorskip("reasoning_gym", reason="the extra environment-reasoning-gym is not installed")
    place = EnvironmentConfig(
        name="counting",
        entry="reasoning-gym:letter_counting",
        config={
            "group_size": 16,
            "concurrency": 8,
            "max_tokens": 2,
            "system_prompt": "",
            "whole_text_is_answer": True,
            "task_config": {"min_words": 1, "max_words": 2},
        },
    )
    with running(tmp_path, model, place, max_tokens=128, steps=40) as run:
        rewards = learn(run)
    assert rewards[0] < 0.2
    assert mean(rewards[-5:]) > 0.5
