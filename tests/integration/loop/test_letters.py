"""A policy that really learns: environment, API server and trainer as the processes they are in a pod."""

import shutil
import time
from pathlib import Path
from statistics import mean

import pytest

from integration.loop.processes import Name, Ports, letters_config, running, tiny_model, until

LEARNED = 0.8  # reward; one letter of the eight may stay unknown for good
pytestmark = pytest.mark.timeout(900)  # three interpreters import torch and friends: slow on a busy machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def test_the_policy_learns_to_write_letters(model: Path, tmp_path: Path) -> None:
    ports = Ports()
    with running(letters_config(model, ports), ports, tmp_path) as run:
        began = time.monotonic()
        until(lambda: bool(run.progress().get("registered")), run, "registration")
        registered = time.monotonic()
        assert run.wait("trainer", timeout=300) == 0, run.tail("trainer")
        seconds = {"starting": round(registered - began, 1), "training": round(time.monotonic() - registered, 1)}
        rewards = [reward for _, reward in run.steps()]
        assert [step for step, _ in run.steps()] == list(range(1, 61))
        assert run.server_status()["current_step"] == 60
        termination = run.termination("trainer")
        assert (termination["reason"], termination["step"]) == ("Finished", 60)
    print({"seconds": seconds, "first_five": mean(rewards[:5]), "last_five": mean(rewards[-5:])})
    assert mean(rewards[:5]) < 0.2
    assert mean(rewards[-5:]) > LEARNED


def test_the_policy_learns_although_each_process_is_killed_in_turn(model: Path, tmp_path: Path) -> None:
    ports = Ports()
    kills: list[tuple[int, Name]] = [(12, "environment"), (22, "api-server"), (33, "trainer")]
    with running(letters_config(model, ports), ports, tmp_path) as run:
        for step, name in kills:
            until(lambda step=step: run.progress().get("step", 0) >= step, run, f"step {step}")
            acknowledged = run.server_status()["current_step"]
            run.kill(name)
            run.start(name)
            if name == "api-server":
                until(lambda: bool(run.server_status()), run, "answer of the API server")
                assert run.server_status()["current_step"] >= acknowledged, "an acknowledged step was lost"
        assert run.wait("trainer", timeout=400) == 0, run.tail("trainer")
        steps = [step for step, _ in run.steps()]
        rewards = [reward for _, reward in run.steps()]
        assert run.server_status()["current_step"] == 60
    resumed = next(index for index in range(1, len(steps)) if steps[index] <= steps[index - 1])
    assert steps[resumed] % 5 == 1, "the trainer went on from its newest checkpoint"
    assert steps[resumed - 1] - steps[resumed] < 5, "no more than the steps since that checkpoint are repeated"
    assert [*steps[:resumed], *steps[resumed:]] == [*range(1, steps[resumed - 1] + 1), *range(steps[resumed], 61)]
    assert rewards[resumed : resumed + 1] == pytest.approx([rewards[steps.index(steps[resumed])]]), (
        "the batches trained after the checkpoint come again, in their old order"
    )
    assert mean(rewards[-5:]) > LEARNED


def test_losing_the_api_server_s_volume_costs_rollouts_and_not_the_policy(model: Path, tmp_path: Path) -> None:
    ports = Ports()
    with running(letters_config(model, ports, steps=20), ports, tmp_path) as run:
        until(lambda: run.progress().get("step", 0) >= 6, run, "step 6")
        run.kill("api-server")
        shutil.rmtree(tmp_path / "api-server")
        run.start("api-server")
        assert run.wait("trainer", timeout=300) == 0, run.tail("trainer")
        assert [step for step, _ in run.steps()] == list(range(1, 21)), "no step is lost or repeated"
        assert run.server_status()["current_step"] == 20
        assert run.termination("trainer")["reason"] == "Finished"
        assert run.processes["environment"].poll() in (None, 0), run.tail("environment")
