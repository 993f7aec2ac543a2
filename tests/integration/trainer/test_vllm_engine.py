"""vLLM cannot run here: its command line and protocol are tested against a stand-in in a process of its own."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from clotho_contract.config import RunConfig
from clotho_contract.settings import Inference, Vllm
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference.core.engine import EngineBusyError, Request, Sampling
from clotho_trainer.inference.vllm.completions import completion_request
from clotho_trainer.inference.vllm.engine import VllmEngine, command_line
from clotho_trainer.model.live import LiveWeights
from integration.trainer.tiny import backend, config

STAND_IN = Path(__file__).with_name("vllm_stand_in.py")


def stand_in(settings: Any, *more: str) -> list[str]:
    """The engine's own command line, with the program exchanged."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    real = command_line(settings, context=64, port=port)
    return [sys.executable, str(STAND_IN), *real[2:], *more]


def with_vllm(settings: RunConfig, **options: Any) -> RunConfig:
    return structs.replace(settings, inference=Inference(engine="vllm", vllm=Vllm(**options)))


@pytest.fixture(scope="module")
def live(model: Path, tmp_path_factory: pytest.TempPathFactory) -> LiveWeights:
    return backend(config(model), tmp_path_factory.mktemp("work"))._live


@pytest.fixture
async def engine(live: LiveWeights, model: Path, tmp_path: Path) -> AsyncIterator[VllmEngine]:
    settings = config(model)
    live.version = 0
    running = VllmEngine(settings, live, tmp_path / "adapters", 64, stand_in(settings))
    await running.start()
    yield running
    await running.stop()


def test_command_line_follows_the_config(model: Path) -> None:
    line = " ".join(command_line(config(model), context=9000))
    assert line.startswith(f"vllm serve {model} --revision main --dtype float32 --host 127.0.0.1")
    for part in ("--enable-lora", "--max-lora-rank 8", "--max-loras 5", "--logprobs-mode processed_logprobs"):
        assert part in line


def test_decoding_leaves_the_modules_to_the_training(live: LiveWeights, model: Path, tmp_path: Path) -> None:
    live.modules_decode = True
    VllmEngine(config(model), live, tmp_path, 64)
    assert not live.modules_decode


def test_its_options_are_passed_on(model: Path) -> None:
    settings = with_vllm(config(model), memory_share=0.5, tensor_parallel=2)
    line = " ".join(command_line(settings, context=9000))
    assert "--gpu-memory-utilization 0.5 --tensor-parallel-size 2" in line


async def test_an_external_server_gets_adapters_on_a_shared_volume_and_is_cleaned_up(
    live: LiveWeights, model: Path, tmp_path: Path
) -> None:
    settings = config(model)
    command = stand_in(settings)
    updating = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    server = await asyncio.create_subprocess_exec(*command, env=os.environ | updating)
    try:
        url = f"http://127.0.0.1:{command[command.index('--port') + 1]}"
        shared = with_vllm(settings, mode="server", url=url, adapter_path=str(tmp_path / "shared"), max_length=32)
        engine = VllmEngine(shared, live, tmp_path / "unused", 64)
        await engine.start()
        assert (await engine.generate(Request((5,) * 30, Sampling(max_tokens=9))))[0].tokens == (7, 7)
        (folder,) = (tmp_path / "shared").iterdir()
        assert folder.name.startswith("tiny-1-")
        await engine.stop()
        assert list((tmp_path / "shared").iterdir()) == []
        assert server.returncode is None, "a server elsewhere is left running"
    finally:
        server.kill()
        await server.wait()


async def test_samples_are_stamped_with_the_adapter_that_made_them(engine: VllmEngine, live: LiveWeights) -> None:
    request = Request((5, 6), Sampling(max_tokens=3), n=2)
    first = await engine.generate(request)
    assert [c.tokens for c in first] == [(7, 7, 7)] * 2
    assert first[0].versions == ((0, 3),)
    assert first[0].logprobs == (-0.5, -0.5, -0.5)
    for version in range(1, 12):  # old adapters make room: the stand-in refuses a sixth
        live.version = version
        await engine.publish()
        assert (await engine.generate(request))[0].version == version
    kept = sorted(path.name for path in (engine._folder).iterdir())
    assert len(kept) <= 4
    assert "policy-v11" in kept


async def test_alternatives_and_scores_of_given_tokens(engine: VllmEngine) -> None:
    (completion,) = await engine.generate(Request((5, 6), Sampling(max_tokens=2, top_logprobs=2)))
    assert completion.top_logprobs == (((7, -0.5), (8, -1.5)),) * 2
    scores = await engine.score((5, 6, 9), 1)
    assert scores.logprobs == (None, -0.25, -0.25)
    assert scores.top_logprobs == (None, ((6, -0.25),), ((9, -0.25),))


def test_every_sampling_field_is_passed_on() -> None:
    sampling = Sampling(
        min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, logit_bias=((5, 2.0),), seed=9
    )
    body = completion_request(Request((5,), sampling), "policy-v0", 64)
    assert {name: body[name] for name in ("min_p", "presence_penalty", "frequency_penalty", "seed")} == {
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 9,
    }
    assert (body["repetition_penalty"], body["logit_bias"]) == (1.1, {"5": 2.0})


async def test_a_prompt_and_its_answer_stay_within_the_context(engine: VllmEngine) -> None:
    long = await engine.generate(Request((5,) * 60, Sampling(max_tokens=100)))
    assert len(long[0].tokens) == 4
    with pytest.raises(ValueError, match="the prompt has 64 tokens"):
        await engine.generate(Request((5,) * 64, Sampling(max_tokens=1)))


async def test_a_dead_vllm_is_a_problem_and_not_a_hang(engine: VllmEngine) -> None:
    assert engine.problem() is None
    process = engine._process
    assert process is not None
    process.kill()
    await process.wait()
    assert engine.problem() == "vLLM exited with code -9"
    with pytest.raises(EngineBusyError, match="vLLM exited"):
        await engine.generate(Request((5,), Sampling()))


async def test_a_vllm_that_cannot_start_ends_the_run_with_its_output_in_the_log(
    live: LiveWeights, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(model)
    broken = VllmEngine(settings, live, tmp_path / "adapters", 64, stand_in(settings, "--fail"))
    with caplog.at_level(logging.INFO), pytest.raises(TrainerError, match="vLLM exited with code 3") as caught:
        await asyncio.wait_for(broken.start(), timeout=120)
    await broken.stop()
    assert caught.value.reason == "DependencyUnavailable"
    assert "no GPU to be found" in caplog.text


async def test_an_image_without_vllm_is_an_error(live: LiveWeights, model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="this image has no vllm command"):
        await VllmEngine(config(model), live, tmp_path / "adapters", 64).start()
