"""A whole trainer in this process, from config file to last words, beside a stand-in for the API server."""

import asyncio
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs
from safetensors.torch import load_file, save_file

from clotho_contract import steering
from clotho_contract.config import RunConfig, RunIdentity, render
from clotho_contract.settings import Wandb
from clotho_dev.ports import free_port
from clotho_trainer.failures import exit_code
from clotho_trainer.process.app import Options, train
from clotho_trainer.training import volume_lock
from integration.trainer.api_stand_in import TOKEN, api_server
from integration.trainer.tiny import config, groups, with_model


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOTHO_TOKEN", TOKEN)
    monkeypatch.setenv("CLOTHO_DATA", str(tmp_path / "data"))


def options(settings: RunConfig, tmp_path: Path) -> Options:
    path = tmp_path / "run.yaml"
    path.write_text(render(settings))
    return Options(path, "127.0.0.1", free_port(), free_port())


def at(settings: RunConfig, url: str, **changes: Any) -> RunConfig:
    endpoints = structs.replace(settings.endpoints, api_server=url)
    return structs.replace(settings, endpoints=endpoints, **changes)


async def test_a_run_trains_saves_and_writes_its_termination_message(model: Path, tmp_path: Path) -> None:
    batches = [groups(seed) for seed in range(5)]
    async with api_server(batches) as api:
        chosen = options(at(config(model, steps=5), api.url, wandb=Wandb(mode="offline")), tmp_path)
        seen: dict[str, Any] = {}

        async def look(step: int) -> None:
            if step != 3:
                return
            base = f"http://127.0.0.1:{chosen.status_port}"
            async with aiohttp.ClientSession() as session:
                for path in ("/progress", "/healthz", "/readyz", "/metrics"):
                    async with session.get(base + path) as response:
                        seen[path] = (response.status, await response.text())

        api.on_acknowledge = look
        end = await train(chosen)
    assert (end.reason, end.message, end.step) == ("Finished", "all 5 steps are done and saved", 5)
    assert end.progress is not None
    assert end.progress.state == "finished"
    assert api.acknowledged == [1, 2, 3, 4, 5]
    assert api.checkpointed == [2, 4, 5]
    assert api.registrations[0]["batch_size"] == 8
    assert api.registrations[0]["starting_step"] == 0
    assert [seen[path][0] for path in ("/healthz", "/readyz")] == [200, 200]
    progress = json.loads(seen["/progress"][1])
    assert (progress["step"], progress["totalSteps"], progress["registered"]) == (3, 5, True)
    assert progress["history"][-1]["step"] == 3
    assert "clotho_trainer_step 3.0" in seen["/metrics"][1]
    checkpoint = tmp_path / "data" / "checkpoints" / "step-00000005"
    summary = json.loads((checkpoint / "training_config.json").read_text())
    assert summary["step"] == 5
    assert summary["config"]["training"]["learningRate"] == 0.01
    card = (checkpoint / "README.md").read_text()
    assert "| steps | 5 of 5 |" in card
    assert "More Information Needed" not in card
    offline = list((tmp_path / "data" / "wandb").glob("wandb/offline-run-*/*.wandb"))
    assert len(offline) == 1, "the real package wrote the run"
    await until(lambda: b"reward/mean" in offline[0].read_bytes())  # its own process writes, a moment later


async def until(true: Callable[[], bool], limit_seconds: float = 30.0) -> None:
    async with asyncio.timeout(limit_seconds):
        while not true():  # noqa: ASYNC110 - another process writes it, without an event for us
            await asyncio.sleep(0.05)


async def test_a_resumed_run_registers_at_its_step_and_continues(model: Path, tmp_path: Path) -> None:
    async with api_server([groups(seed) for seed in range(9)]) as api:
        first = await train(options(at(config(model, steps=3), api.url), tmp_path))
        second = await train(options(at(config(model, steps=6), api.url), tmp_path))
    assert (first.step, second.step) == (3, 6)
    assert [registration["starting_step"] for registration in api.registrations] == [0, 3]
    assert api.acknowledged == [1, 2, 3, 4, 5, 6]
    history = json.loads((tmp_path / "data" / "checkpoints" / "step-00000006" / "training_config.json").read_text())[
        "history"
    ]
    assert [sample["step"] for sample in history] == [1, 2, 3, 4, 5, 6], "also the part before the restart"


async def test_a_stop_saves_a_checkpoint_and_reports_it(model: Path, tmp_path: Path) -> None:
    async with api_server([groups(seed) for seed in range(3)]) as api:
        api.on_acknowledge = lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 3 else None
        end = await train(options(at(config(model, steps=100), api.url), tmp_path))
    assert (end.reason, end.message, end.step) == ("Stopped", "stopped and saved after step 3 of 100", 3)
    assert (tmp_path / "data" / "checkpoints" / "step-00000003").is_dir()


async def test_a_stop_does_not_wait_for_a_server_that_is_gone(model: Path, tmp_path: Path) -> None:
    """A deleted run loses all its pods at once: the checkpoint counts, not the answer to it."""
    async with api_server([groups(seed) for seed in range(3)]) as api:

        def vanish(step: int) -> None:
            if step == 3:
                api.is_gone = True
                os.kill(os.getpid(), signal.SIGTERM)

        api.on_acknowledge = vanish
        end = await train(options(at(config(model, steps=100), api.url), tmp_path))
    assert (end.reason, end.step) == ("Stopped", 3)
    assert (tmp_path / "data" / "checkpoints" / "step-00000003").is_dir()


async def test_steps_can_be_raised_during_the_run(model: Path, tmp_path: Path) -> None:
    async with api_server([groups(seed) for seed in range(4)]) as api:
        settings = at(config(model, steps=2), api.url)
        chosen = options(settings, tmp_path)
        longer = structs.replace(settings, training=structs.replace(settings.training, steps=4))
        assert chosen.config is not None
        path = chosen.config
        api.on_acknowledge = lambda step: path.write_text(render(longer)) if step == 1 else None
        end = await train(chosen)
    assert (end.reason, end.step) == ("Finished", 4)
    assert api.registrations[-1]["num_steps"] == 4


async def test_steps_sent_over_http_count_before_the_file_changes(model: Path, tmp_path: Path) -> None:
    async with api_server([groups(seed) for seed in range(4)]) as api:
        chosen = options(at(config(model, steps=2), api.url), tmp_path)

        async def raise_steps(step: int) -> None:
            if step == 2:
                url = f"http://127.0.0.1:{chosen.status_port}{steering.STEPS_PATH}"
                headers = {"Authorization": f"Bearer {TOKEN}"}
                async with (
                    aiohttp.ClientSession() as session,
                    session.put(url, data=steering.encode(4), headers=headers),
                ):
                    pass

        api.on_acknowledge = raise_steps
        end = await train(chosen)
    assert (end.reason, end.step) == ("Finished", 4)
    assert api.registrations[-1]["num_steps"] == 4


def another_run(settings: RunConfig, **changes: Any) -> RunConfig:
    return structs.replace(settings, run=RunIdentity(name="next", namespace="default", id="next-1"), **changes)


async def test_a_run_that_continues_another_leaves_its_checkpoints_alone(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "checkpoints"
    async with api_server([groups(seed) for seed in range(9)]) as api:
        await train(options(at(config(model, steps=4), api.url), tmp_path))
        before = sorted(path.name for path in folder.iterdir())
        nothing_left = another_run(at(config(model, steps=4), api.url), continues_other_runs=True)
        refused = await train(options(nothing_left, tmp_path))
        longer = another_run(at(config(model, steps=9), api.url), continues_other_runs=True)
        end = await train(options(longer, tmp_path))
    assert (refused.reason, "nothing is left to train" in refused.message) == ("InvalidConfig", True)
    assert (end.reason, end.step) == ("Finished", 9)
    assert [each["starting_step"] for each in api.registrations] == [0, 4]
    assert before == ["step-00000002", "step-00000004"]
    assert sorted(path.name for path in folder.iterdir()) == [*before, "step-00000008", "step-00000009"]


async def test_a_new_run_on_a_used_volume_starts_at_the_first_step(model: Path, tmp_path: Path) -> None:
    async with api_server([groups(seed) for seed in range(5)]) as api:
        await train(options(at(config(model, steps=2), api.url), tmp_path))
        end = await train(options(another_run(at(config(model, steps=2), api.url)), tmp_path))
    assert (end.reason, end.step) == ("Finished", 2)
    assert api.acknowledged == [1, 2, 1, 2], "it is not Completed because another run is"
    assert (tmp_path / "data" / "checkpoints" / "step-00000002-next-1").is_dir()


async def test_a_volume_in_use_is_not_trained_on(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_lock, "USUAL", volume_lock.Timing(limit_seconds=0.0))
    async with api_server([groups(0)]) as api:
        settings = at(config(model), api.url)
        async with volume_lock.held(tmp_path / "data", another_run(settings).run, print):
            end = await train(options(settings, tmp_path))
    assert end.reason == "DependencyUnavailable"
    assert end.message.startswith("the volume is in use by default/next; stop that run")
    assert api.registrations == []


async def test_damaged_checkpoints_end_the_run_unless_it_may_start_over(model: Path, tmp_path: Path) -> None:
    async with api_server([groups(seed) for seed in range(6)]) as api:
        settings = at(config(model, steps=4), api.url)
        await train(options(settings, tmp_path))
        for weights in (tmp_path / "data" / "checkpoints").glob("*/adapter_model.safetensors"):
            weights.write_bytes(b"")
        damaged = await train(options(settings, tmp_path))
        allowed = structs.replace(settings.training.checkpoint, on_damage="StartOver")
        training = structs.replace(settings.training, checkpoint=allowed, steps=2)
        again = await train(options(structs.replace(settings, training=training), tmp_path))
    assert damaged.reason == "CheckpointsDamaged"
    assert "step-00000004: adapter_model.safetensors has 0 bytes" in damaged.message
    assert [each["starting_step"] for each in api.registrations] == [0, 0], "no registration at step 1 in silence"
    assert (again.reason, again.step) == ("Finished", 2)


async def test_a_model_that_does_not_fit_into_memory_is_not_worth_another_attempt(model: Path, tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    shutil.copytree(model, huge)
    shape = json.loads((huge / "config.json").read_text())
    beyond_addresses = {"intermediate_size": 10**13}  # petabytes a layer: refused even where the kernel overcommits
    (huge / "config.json").write_text(json.dumps(shape | beyond_addresses))
    weights = load_file(huge / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if ".mlp." not in name}
    save_file(kept, huge / "model.safetensors", metadata={"format": "pt"})
    async with api_server([]) as api:
        end = await train(options(with_model(at(config(model), api.url), name=str(huge)), tmp_path))
    assert end.reason == "ModelTooLarge"
    assert end.message.startswith(f"{huge} does not fit into memory: ")
    assert "model.quantization nf4" in end.message
    assert exit_code(end) == 2


async def test_a_batch_whose_lease_was_lost_is_not_trained_twice(model: Path, tmp_path: Path) -> None:
    async with api_server([groups(seed) for seed in range(3)]) as api:
        api.losing = 1
        end = await train(options(at(config(model, steps=3), api.url), tmp_path))
    assert (end.reason, end.step) == ("Finished", 3)
    assert api.acknowledged == [1, 2, 3], "the lost batch came back and was only acknowledged"
    assert api.batches == []


async def test_invalid_groups_are_dropped_and_the_rest_is_trained(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    garbage = {"tokens": [[1, 2, 999_999]], "masks": [[-100, 2, 3]], "scores": [1.0]}
    batches = [[garbage], [garbage, *groups(1)], groups(2)]
    async with api_server(batches) as api:
        with caplog.at_level(logging.WARNING):
            end = await train(options(at(config(model, steps=2), api.url), tmp_path))
    assert (end.reason, end.step) == ("Finished", 2)
    assert api.acknowledged == [0, 1, 2], "a batch with nothing in it is acknowledged without a step"
    assert "it was made with another tokenizer" in caplog.text


async def test_a_missing_model_is_reported_in_one_sentence(model: Path, tmp_path: Path) -> None:
    async with api_server([]) as api:
        end = await train(options(with_model(at(config(model), api.url), name="/models/absent"), tmp_path))
    assert end.reason == "ModelUnreadable"
    assert end.message == (
        "cannot read the tokenizer from the folder /models/absent: "
        "it does not exist; check model.name and model.claimName"
    )


async def test_a_broken_model_is_reported_in_one_sentence(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    async with api_server([]) as api:
        end = await train(options(with_model(at(config(model), api.url), name=str(broken)), tmp_path))
    assert end.reason == "ModelUnreadable"
    assert end.message.startswith(f"cannot read the model from the folder {broken}")


async def test_a_tokenizer_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"word{i}": len(vocabulary) + i for i in range(50)}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    async with api_server([]) as api:
        end = await train(options(with_model(at(config(model), api.url), name=str(other)), tmp_path))
    assert end.reason == "ModelUnreadable"
    assert "they do not belong together" in end.message


async def test_four_bits_without_cuda_are_refused(model: Path, tmp_path: Path) -> None:
    async with api_server([]) as api:
        end = await train(options(with_model(at(config(model), api.url), quantization="nf4"), tmp_path))
    assert end.reason == "InvalidConfig"
    assert end.message == "model.quantization nf4 needs a CUDA GPU, and this pod sees none"


async def test_a_refused_token_is_reported(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOTHO_TOKEN", "another")
    async with api_server([]) as api:
        end = await train(options(at(config(model), api.url), tmp_path))
    assert end.reason == "Unauthorized"
    assert end.message == f"the API server at {api.url} refused the token: wrong token"


async def test_an_absent_api_server_is_waited_for_and_then_named(model: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    end = await train(options(at(config(model), url, stall_after_seconds=1), tmp_path))
    assert end.reason == "DependencyUnavailable"
    assert end.message.startswith(f"no answer from {url}/status for ")


async def test_without_a_token_nothing_starts(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOTHO_TOKEN")
    end = await train(options(config(model), tmp_path))
    assert (end.reason, "$CLOTHO_TOKEN is not set" in end.message) == ("InvalidConfig", True)


async def test_a_missing_config_is_named(tmp_path: Path) -> None:
    end = await train(Options(tmp_path / "absent.yaml"))
    assert end.reason == "InvalidConfig"
    assert "absent.yaml" in end.message
