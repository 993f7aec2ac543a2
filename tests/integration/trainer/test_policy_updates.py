"""The policy on its way to a replica: what arrives is what was trained, or is refused. Real HTTP, and no real model."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
import xxhash
from aiohttp import web
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from clotho_contract.names import POLICY_VERSION_HEADER
from clotho_contract.policy_updates import ATTEMPT_HEADER, DIGEST_HEADER
from clotho_contract.retry import TransientError
from clotho_dev.ports import free_port
from clotho_trainer.inference import policy_download
from clotho_trainer.inference.policy_download import PolicyPort
from clotho_trainer.model.architecture import is_saved_as_named
from clotho_trainer.model.live import LiveWeights
from clotho_trainer.model.memory_file import MemoryFile
from clotho_trainer.model.trained import TrainedParameters, read_trained, replace_trained, trained_names, write_trained
from clotho_trainer.process.app import listening
from clotho_trainer.process.policy_server import PolicyServer

TOKEN = "of-the-replicas"
Damage = Callable[[bytes], bytes]


class Trainer:
    """As much of a backend as the policy port needs."""

    def __init__(self, model: nn.Module) -> None:
        self.live = LiveWeights(model, None)

    @property
    def version(self) -> int:
        return self.live.version

    def write_trained(self, spare: MemoryFile | None) -> tuple[int, MemoryFile]:
        return write_trained(self.live, spare)

    def train(self) -> None:
        with self.live.training(), torch.no_grad():
            for parameter in self.live.model.parameters():
                parameter.add_(1)
            self.live.version += 1


def mixed() -> nn.Module:
    """Of two precisions, and of a size that puts later tensors on odd places."""
    parts = {"bfloat": nn.Linear(2, 1, dtype=torch.bfloat16), "single": nn.Linear(3, 5), "base": nn.Linear(2, 2)}
    parts["base"].requires_grad_(False)
    return nn.ModuleDict(parts)


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}


@asynccontextmanager
async def published(trainer: Trainer) -> AsyncIterator[tuple[PolicyServer, PolicyPort]]:
    server, port = PolicyServer(TOKEN), free_port()
    async with listening(server.application(), "127.0.0.1", port):
        server.publish(trainer)  # type: ignore[arg-type]
        yield server, PolicyPort(f"http://127.0.0.1:{port}", TOKEN, lambda _: None)


def test_the_file_is_safetensors_with_what_is_trained_and_is_used_again(tmp_path: Path) -> None:
    trainer = Trainer(mixed())
    version, file = trainer.write_trained(None)
    copied = tmp_path / "copy.safetensors"
    copied.write_bytes(file.view)
    torch.testing.assert_close(load_file(copied), trained(trainer.live.model), rtol=0, atol=0)
    assert (version, trained_names(trainer.live.model)) == (0, load_file(copied).keys())
    trainer.train()
    version, again = trainer.write_trained(file)
    assert (version, again) == (1, file)
    torch.testing.assert_close(read_trained(file.path), trained(trainer.live.model), rtol=0, atol=0)
    assert trainer.write_trained(MemoryFile(8))[1].size == file.size, "another size needs another file"


def test_a_file_is_gone_with_its_last_user() -> None:
    file = MemoryFile(8)
    path = file.path
    assert path.exists()
    del file
    gc.collect()
    assert not path.exists()


async def test_policies_beyond_the_sockets_buffers_arrive_whole_while_the_loop_serves_others() -> None:
    """One loop has both sides here: if one held it up, neither would go on."""
    trainer = Trainer(nn.Linear(4096, 2048))
    async with published(trainer) as (server, port):
        first = await port.poll(None, "")
        assert first is not None
        torch.testing.assert_close(dict(first.trained.tensors), trained(trainer.live.model), rtol=0, atol=0)
        trainer.train()
        server.publish(trainer)  # type: ignore[arg-type]
        others = [PolicyPort(f"http://{port._host}:{port._port}", TOKEN, lambda _: None) for _ in range(2)]
        for received in await asyncio.gather(*(each.poll(0, first.attempt) for each in (port, *others))):
            assert received is not None
            assert received.trained.version == 1
            torch.testing.assert_close(dict(received.trained.tensors), trained(trainer.live.model), rtol=0, atol=0)


async def test_a_copy_gives_its_memory_to_the_next_unless_it_is_being_sent_or_about_to_be() -> None:
    trainer = Trainer(mixed())
    server = PolicyServer(TOKEN)
    server.publish(trainer)  # type: ignore[arg-type]
    first = await server._newest(trainer)  # type: ignore[arg-type]
    with server._reading(first):
        trainer.train()
        second = await server._newest(trainer)  # type: ignore[arg-type]
        assert second.file is not first.file
    trainer.train()
    third = await server._newest(trainer)  # type: ignore[arg-type]
    assert third.file in (first.file, second.file)

    server._copying = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
    waiting = asyncio.create_task(server._newest(trainer))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    server._copying.set_result(first)  # type: ignore[union-attr] - whose memory has gone to the third
    assert await waiting is third


def _flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_flipped, "its digest differs"),
        (lambda body: body[:-4] + body[-2:] + body[-4:-2], "its digest differs"),
        (lambda body: body[: len(body) // 2], "ended before all parameters had come"),
        (lambda body: b"", "ended before all parameters had come"),
    ],
    ids=["one bit", "two numbers exchanged", "half of it", "nothing of it"],
)
async def test_an_answer_that_is_damaged_or_torn_is_refused_and_the_next_is_taken(damage: Damage, problem: str) -> None:
    trainer = Trainer(mixed())
    _, file = trainer.write_trained(None)
    body, sent = bytes(file.view), [damage(bytes(file.view)), bytes(file.view)]

    async def policy(request: web.Request) -> web.StreamResponse:
        headers = {POLICY_VERSION_HEADER: "0", ATTEMPT_HEADER: "a", DIGEST_HEADER: xxhash.xxh3_128_hexdigest(body)}
        response = web.StreamResponse(headers=headers | {"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(sent.pop(0))
        if request.transport is not None and len(sent) == 1:
            request.transport.close()
        return response

    app, number = web.Application(), free_port()
    app.router.add_get("/policy", policy)
    async with listening(app, "127.0.0.1", number):
        port = PolicyPort(f"http://127.0.0.1:{number}", TOKEN, lambda _: None)
        with pytest.raises(TransientError, match=problem):
            await port.poll(None, "")
        received = await port.poll(None, "")
    assert received is not None
    torch.testing.assert_close(dict(received.trained.tensors), trained(trainer.live.model), rtol=0, atol=0)


async def test_a_replica_that_stops_does_not_wait_for_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(mixed())
    monkeypatch.setattr(policy_download, "_SILENCE_SECONDS", 3600)
    async with published(trainer) as (server, port):
        server._hold_seconds = 3600.0
        first = await port.poll(None, "")
        assert first is not None
        waiting = asyncio.create_task(port.poll(0, first.attempt))
        await asyncio.sleep(0.1)  # the trainer holds it
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(port._thread.shutdown, wait=True)


_SMALL = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4}


@pytest.mark.parametrize(
    ("settings", "is_ready"),
    [(Qwen3Config(**_SMALL, **_HEADS), True), (Qwen3MoeConfig(**_SMALL, **_HEADS, **_EXPERTS), False)],
    ids=["as its checkpoint has it", "experts together"],
)
def test_vllm_reads_what_was_received_where_it_is_unless_checkpoints_have_other_tensors(
    settings: Qwen3Config, is_ready: bool, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_config(settings)
    trainer, replica = Trainer(model), LiveWeights(AutoModelForCausalLM.from_config(settings), None)
    replica.whole = {}
    _, file = trainer.write_trained(None)
    received = TrainedParameters(3, read_trained(file.path), file.path)
    replace_trained(replica, trained_names(model), received, lineage=1)
    with replica.training():
        assert is_saved_as_named(model) is is_ready
        assert (replica.bytes_to_hand_over == 0) is is_ready
        replica.hand_over(tmp_path)
    model.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(
        load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    )
    assert (tmp_path / "model.safetensors").is_symlink() is is_ready
