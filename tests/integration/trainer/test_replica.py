"""Inference replicas beside a trainer: real weights over real HTTP, in one process."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
import torch
from msgspec import structs

from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_contract.policy_updates import ATTEMPT_HEADER, Load
from clotho_contract.settings import Inference, Lora
from clotho_dev.ports import free_port
from clotho_trainer.failures import TrainerError
from clotho_trainer.inference import load_reports
from clotho_trainer.inference.core.engine import Engine, Request, Sampling
from clotho_trainer.inference.following import PolicyFollower
from clotho_trainer.inference.load_reports import report_load
from clotho_trainer.inference.vllm.engine import VllmEngine, command_line
from clotho_trainer.model import serving
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.tokenizer import load_tokenizer
from clotho_trainer.model.trained import TrainedParameters, read_trained
from clotho_trainer.process.app import listening
from clotho_trainer.process.policy_server import PolicyServer
from clotho_trainer.process.replica import _load, replica_config
from clotho_trainer.training.batch import prepare
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer.test_vllm_engine import STAND_IN
from integration.trainer.tiny import backend, config, groups

TOKEN = "of-the-replicas"


def train(trainer: LocalBackend, seed: int = 1) -> None:
    trainer.step(prepare(groups(seed), trainer.rules, trainer.version), 1e-2)


def greedy(live: LiveWeights) -> torch.Tensor:
    with live.decoding():
        return live.model(torch.tensor([[5, 6, 7]])).logits[0]


@asynccontextmanager
async def published(trainer: LocalBackend, port: int) -> AsyncIterator[PolicyServer]:
    server = PolicyServer(TOKEN)
    async with listening(server.application(), "127.0.0.1", port):
        server.publish(trainer)
        yield server


@asynccontextmanager
async def following(live: LiveWeights, names: frozenset[str], port: int, engine: Any) -> AsyncIterator[PolicyFollower]:
    follower = PolicyFollower(f"http://127.0.0.1:{port}", TOKEN, live, names, max_staleness=1)
    task = asyncio.create_task(follower.follow(engine))
    try:
        yield follower
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the follower has no event for it
            await asyncio.sleep(0.01)


async def likeliest(engine: Engine) -> tuple[float, ...]:
    """The log-probabilities of the likeliest continuation."""
    (completion,) = await engine.generate(Request((5, 6, 7), Sampling(max_tokens=4, temperature=0.0)))
    return completion.logprobs


@pytest.mark.parametrize(("engine", "rank"), [("transformers", 8), ("transformers", 0), ("fast", 8)])
async def test_a_replica_samples_what_the_trainer_does_after_each_step_and_after_its_restart(
    model: Path, tmp_path: Path, engine: Literal["transformers", "fast"], rank: int
) -> None:
    settings = structs.replace(config(model, rank=rank), inference=Inference(engine=engine, max_batch_size=2))
    trainer, replica, port = backend(settings, tmp_path), _load(settings, tmp_path), free_port()
    live = replica.live
    async with AsyncExitStack() as stack:
        for each in (trainer.engine, replica.engine):
            await each.start()
            stack.push_async_callback(each.stop)
        train(trainer)
        async with following(live, replica.names, port, replica.engine) as follower:
            assert follower.unready() is not None, "there is no policy before the first"
            async with published(trainer, port) as server:
                for version in (1, 2):
                    await until(lambda version=version: follower.position.version == version)
                    assert await likeliest(replica.engine) == pytest.approx(await likeliest(trainer.engine), abs=1e-5)
                    train(trainer, seed=version + 1)
                    server.publish(trainer)
                await until(lambda: follower.position.version == 3)
            assert follower.unready() is None
            before = await likeliest(replica.engine)

            trainer.live.version = 2  # it resumed from an older checkpoint, and took other steps from there
            train(trainer, seed=9)
            async with published(trainer, port):
                await until(lambda: live.lineage == 2)
                after = await likeliest(replica.engine)
            assert live.version == 3, "the same version, of other weights"
            assert after == pytest.approx(await likeliest(trainer.engine), abs=1e-5)
            assert after != pytest.approx(before, abs=1e-5)


async def test_the_policy_port_requires_its_token_and_holds_a_request_until_there_is_news(
    model: Path, tmp_path: Path
) -> None:
    trainer, port = backend(config(model), tmp_path), free_port()
    url = f"http://127.0.0.1:{port}/policy"
    async with published(trainer, port) as server, aiohttp.ClientSession() as session:
        async with session.get(url) as refused:
            assert refused.status == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with session.get(url, headers=headers) as first:
            held = {"after": first.headers[POLICY_VERSION_HEADER], "attempt": first.headers[ATTEMPT_HEADER]}
            assert (first.status, held["after"]) == (200, "0")
            body = await first.read()
        async with session.get(url, headers=headers, params=held | {"attempt": "another"}) as again:
            assert (again.status, await again.read()) == (200, body), "taken once, sent to all"
        server._hold_seconds = 0.05
        async with session.get(url, headers=headers, params=held) as nothing:
            assert (nothing.status, nothing.headers[POLICY_VERSION_HEADER]) == (204, "0")
        train(trainer)
        with trainer.live.training():  # the next step has begun
            async with session.get(url, headers=headers, params=held) as later:
                assert (later.status, later.headers[POLICY_VERSION_HEADER]) == (204, "1"), "it is not silent meanwhile"
        server._hold_seconds = 60.0
        async with session.get(url, headers=headers, params=held) as second:
            assert (second.status, second.headers[POLICY_VERSION_HEADER]) == (200, "1")


async def test_a_replica_reports_its_load_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_reports, "LOAD_SECONDS", 0.01)
    taken: list[tuple[str, Load]] = []
    server, port = PolicyServer(TOKEN, lambda name, load: taken.append((name, load))), free_port()
    trainer, loads = f"http://127.0.0.1:{port}", iter([None, Load(1, 8), None, Load(3, 8)])
    async with listening(server.application(), "127.0.0.1", port), aiohttp.ClientSession() as session:
        for body, status in ((b'{"sequences": 1, "rows": 8}', 401), (b"", 401)):
            async with session.post(f"{trainer}/load?replica=0", data=body) as refused:
                assert refused.status == status, "it requires the token"
        session.headers["Authorization"] = f"Bearer {TOKEN}"
        for path, body in (("0", b'{"sequences": -1, "rows": 8}'), ("../0", b'{"sequences": 1, "rows": 8}')):
            async with session.post(f"{trainer}/load", params={"replica": path}, data=body) as refused:
                assert refused.status == 400
        task = asyncio.create_task(report_load(session, trainer, "7", lambda: next(loads, None)))
        await until(lambda: len(taken) == 2)
        task.cancel()
    assert taken == [("7", Load(1, 8)), ("7", Load(3, 8))]


async def test_a_slow_replica_holds_back_no_more_than_one_older_copy(model: Path, tmp_path: Path) -> None:
    trainer = backend(config(model), tmp_path)
    server = PolicyServer(TOKEN)
    server.publish(trainer)
    old = await server._newest(trainer)
    with server._reading(old):
        train(trainer)
        newer = await server._newest(trainer)
        with server._reading(newer):
            train(trainer)
            waiting = asyncio.create_task(server._newest(trainer))
            await asyncio.sleep(0)
            assert [copy.version for copy in server._copies] == [0, 1]
            assert not waiting.done()
        newest = await waiting
    assert newest.version == 2
    assert [copy.version for copy in server._copies] == [0, 2]


def test_parameters_of_another_model_are_refused_and_change_nothing(model: Path, tmp_path: Path) -> None:
    trainer = backend(config(model, lora=Lora(rank=4, alpha=8.0)), tmp_path)
    replica = _load(config(model), tmp_path)
    before = greedy(replica.live)
    follower = PolicyFollower("", TOKEN, replica.live, replica.names, max_staleness=0)
    version, file = trainer.write_trained(None)
    with pytest.raises(TrainerError, match="has the shape"):
        follower._swap("a", TrainedParameters(version, read_trained(file.path)))
    torch.testing.assert_close(greedy(replica.live), before)


async def test_vllm_gets_the_adapters_without_the_base_being_loaded(model: Path, tmp_path: Path) -> None:
    settings, port = config(model), free_port()
    trainer = backend(settings, tmp_path / "trainer")
    policy, names = serving.load_adapters(settings.model, settings.training.lora)
    assert {parameter.device.type for name, parameter in policy.named_parameters() if name not in names} == {"meta"}
    live = LiveWeights(policy, load_tokenizer(settings.model))
    command = [sys.executable, str(STAND_IN), *command_line(settings, 64, free_port())[2:]]
    engine = VllmEngine(settings, live, tmp_path / "adapters", 64, command)
    await engine.start()
    try:
        train(trainer)
        async with published(trainer, port), following(live, names, port, engine) as follower:
            await until(lambda: follower.position.version == 1)
            (completion,) = await engine.generate(Request((5, 6), Sampling(max_tokens=2)))
            assert completion.version == 1
        written = json.loads((tmp_path / "adapters" / "policy-1-v1" / "adapter_config.json").read_text())
        assert written["r"] == 8
        _, file = trainer.write_trained(None)
        torch.testing.assert_close(dict(copy_trained_names(live, names)), dict(read_trained(file.path)))
    finally:
        await engine.stop()


def copy_trained_names(live: LiveWeights, names: frozenset[str]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in live.model.named_parameters() if name in names}


def test_replicas_sample_with_seeds_of_their_own(model: Path) -> None:
    settings = config(model)
    endpoints = structs.replace(settings.endpoints, policy="http://trainer:8005", inference_ranks=("a", "b", "c"))
    seeds = [replica_config(structs.replace(settings, endpoints=endpoints), index).training.seed for index in "012"]
    assert seeds == [3, 4, 5], "ranks have 0, 1 and 2"
