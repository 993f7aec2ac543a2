"""Full fine-tuning with vLLM: all weights reach it after each step. A stand-in that computes takes its place here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch
from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.settings import Inference
from clotho_dev.ports import free_port
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import Completion, EngineBusyError, Request, Sampling
from clotho_trainer.inference.vllm import engine as vllm_engine
from clotho_trainer.inference.vllm import policies
from clotho_trainer.inference.vllm.engine import VllmEngine
from clotho_trainer.model import serving as serving_model
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.process.replica import _load
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.test_replica import following, published, train, until
from integration.trainer.test_vllm_engine import STAND_IN, stand_in
from integration.trainer.tiny import backend, config

PROMPT = (5, 6, 7)


def sampled_by(live: LiveWeights, completion: Completion) -> list[float]:
    """The log-probabilities that the trainer's own modules give to what was sampled."""
    tokens = (*PROMPT, *completion.tokens)
    with live.decoding():
        rows = live.model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
    return [float(rows[place, token]) for place, token in enumerate(tokens[1:])][len(PROMPT) - 1 :]


def sampling(tokens: int) -> Request:
    return Request(PROMPT, Sampling(max_tokens=tokens))


@pytest.fixture
def settings(model: Path) -> RunConfig:
    return config(model, rank=0)


@pytest.fixture
def trainer(settings: RunConfig, tmp_path: Path) -> LocalBackend:
    transformers = structs.replace(settings, inference=Inference(engine="transformers"))
    return backend(transformers, tmp_path / "trainer")


@asynccontextmanager
async def serving(settings: RunConfig, live: LiveWeights, folder: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(settings, live, folder, 64, stand_in(settings))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def test_the_command_line_has_no_adapters_and_listens_on_loopback_only(settings: RunConfig) -> None:
    line = " ".join(vllm_engine.command_line(settings, context=64))
    assert "lora" not in line
    assert "--host 127.0.0.1" in line, "whoever reaches it can change the weights"


async def test_a_replica_samples_from_the_weights_of_each_step_and_of_another_attempt(
    settings: RunConfig, trainer: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `vllm serve` on the PATH, as a replica starts it."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nshift\nexec python {STAND_IN} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(vllm_engine, "_PORT", free_port())
    replica = _load(structs.replace(settings, inference=Inference(engine="vllm")), tmp_path)
    assert {parameter.device.type for parameter in replica.live.model.parameters()} == {"meta"}, "vLLM has the weights"
    port = free_port()
    async with AsyncExitStack() as stack:
        await replica.engine.start()
        stack.push_async_callback(replica.engine.stop)
        follower = await stack.enter_async_context(following(replica.live, replica.names, port, replica.engine))
        async with published(trainer, port) as server:
            for version in (0, 1, 2):
                await until(lambda version=version: follower.position.version == version)
                (completion,) = await replica.engine.generate(sampling(4))
                assert completion.versions == ((version, 4),)
                assert completion.logprobs == pytest.approx(sampled_by(trainer.live, completion), abs=1e-4)
                train(trainer, seed=version + 1)
                server.publish(trainer)
            await until(lambda: follower.position.version == 3)
            (old,) = await replica.engine.generate(sampling(4))
        trainer.live.version = 2  # it resumed from an older checkpoint, and took another step from there
        train(trainer, seed=9)
        async with published(trainer, port):
            await until(lambda: replica.engine._policies._stamp == (2, 3))  # type: ignore[attr-defined]
            (completion,) = await replica.engine.generate(sampling(4))
    assert completion.logprobs == pytest.approx(sampled_by(trainer.live, completion), abs=1e-4)
    assert old.logprobs != pytest.approx(sampled_by(trainer.live, old), abs=1e-4), "the same version, of other weights"


async def test_no_answer_has_tokens_of_two_versions(settings: RunConfig, trainer: LocalBackend, tmp_path: Path) -> None:
    async with serving(settings, trainer.live, tmp_path / "vllm") as engine:
        early = asyncio.create_task(engine.generate(sampling(50)))
        await asyncio.sleep(0.01)  # it is on its way
        before = {name: tensor.clone() for name, tensor in trainer.live.model.state_dict().items()}
        train(trainer)
        publishing = asyncio.create_task(engine.publish())
        gate = engine._policies._gate  # type: ignore[attr-defined]
        await until(lambda: not gate._opened.is_set() or publishing.done())
        (late,) = await engine.generate(sampling(4))
        await publishing
        (first,) = await early
        assert (first.versions, late.versions) == (((0, 50),), ((1, 4),))
        assert late.logprobs == pytest.approx(sampled_by(trainer.live, late), abs=1e-4)
        trainer.live.model.load_state_dict(before)
        assert first.logprobs == pytest.approx(sampled_by(trainer.live, first), abs=1e-4)


async def test_weights_are_removed_once_vllm_has_them_and_a_reload_that_fails_ends_its_service(
    settings: RunConfig, trainer: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, disk = tmp_path / "shm", tmp_path / "vllm"
    memory.mkdir()
    written: list[Path] = []
    save = trainer.live.save_pretrained
    monkeypatch.setattr(trainer.live, "save_pretrained", lambda folder: (written.append(folder), save(folder)))
    async with serving(settings, trainer.live, disk) as engine:
        for place in (memory, tmp_path / "absent"):
            monkeypatch.setattr(policies, "SHARED_MEMORY", place)
            train(trainer)
            await engine.publish()
            await engine.publish()  # of the same version: there is nothing to hand over
        assert [folder.parent for folder in written] == [memory, disk], "on the disk where memory has no room"
        assert [*memory.iterdir(), *disk.iterdir()] == []

        monkeypatch.setattr(trainer.live, "save_pretrained", lambda folder: None)
        train(trainer)
        with pytest.raises(TrainerError, match=r"could not load the weights of step 3: .* Cannot find any") as caught:
            await engine.publish()
        assert caught.value.reason == "DependencyUnavailable"
        assert engine.problem() == caught.value.message
        with pytest.raises(EngineBusyError, match="could not load the weights"):
            await engine.generate(sampling(1))


def test_a_model_with_weights_that_are_not_trained_is_refused(
    settings: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = serving_model.load_shapes(settings.model)
    policy.model.layers[1].mlp.register_buffer("correction_bias", torch.empty(2, device="meta"))
    monkeypatch.setattr(serving_model, "load_shapes", lambda _: policy)
    with pytest.raises(TrainerError, match=r"not trained \(model\.layers\.1\.mlp\.correction_bias\)"):
        serving_model.load_names(settings.model)
