"""Registration with an Ollama server, against one that takes its documented API strictly."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from clotho_contract.exports import ExportProgress
from clotho_contract.settings import Export
from clotho_contract.settings import Ollama as Address
from clotho_trainer.export import ollama
from clotho_trainer.export.run import export
from clotho_trainer.failures import TrainerError
from integration.trainer.export.ollama_stand_in import Ollama


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama, "_PAUSE", 0.0)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Ollama, str]]:
    stand_in = Ollama()
    running = TestServer(stand_in.app())
    await running.start_server()
    yield stand_in, str(running.make_url("")).rstrip("/")
    await running.close()


async def run(model: Path, output: Path, url: str, seen: list[ExportProgress] | None = None) -> str:
    settings = Export(ollama=Address(url=url, name="team/tiny:q8"))
    report = (seen if seen is not None else []).append
    outcome = await asyncio.to_thread(export, model, output, settings, report=report)
    return outcome.ollama


async def test_the_blob_is_uploaded_before_the_model_refers_to_it(
    model: Path, tmp_path: Path, server: tuple[Ollama, str]
) -> None:
    stand_in, url = server
    seen: list[ExportProgress] = []
    assert await run(model, tmp_path, url, seen) == "team/tiny:q8"
    assert stand_in.requests == ["HEAD blobs", "POST blobs", "POST create"]
    created = stand_in.models["team/tiny:q8"]
    assert list(created["files"]) == ["model-q8_0.gguf"]
    assert stand_in.blobs[created["files"]["model-q8_0.gguf"]] == (tmp_path / "model-q8_0.gguf").read_bytes()
    assert created["parameters"] == {"stop": ["<eos>"]}
    assert "<|assistant|>" in created["template"]
    uploads = [each.percent for each in seen if each.state == "uploading"]
    assert uploads[0] == 0
    assert uploads[-1] == 100
    assert seen[-1].state == "finished"


async def test_existing_blobs_are_not_uploaded_again(model: Path, tmp_path: Path, server: tuple[Ollama, str]) -> None:
    stand_in, url = server
    await run(model, tmp_path, url)
    stand_in.requests.clear()
    await run(model, tmp_path, url)
    assert stand_in.requests == ["HEAD blobs", "POST create"]


async def test_a_server_that_is_restarting_gets_another_chance(
    model: Path, tmp_path: Path, server: tuple[Ollama, str]
) -> None:
    stand_in, url = server
    stand_in.failures = [503, 503]
    assert await run(model, tmp_path, url)
    assert "team/tiny:q8" in stand_in.models


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"failures": [503] * 9}, "DependencyUnavailable", "answered 503 when asked for the blob"),
        ({"failures": [401]}, "InvalidConfig", "answered 401 when asked for the blob"),
        (
            {"last_line": {"error": "unknown model architecture"}},
            "InvalidConfig",
            "refused team/tiny:q8: unknown model",
        ),
        ({"last_line": {"status": "writing"}}, "DependencyUnavailable", "ended in the middle of creating team/tiny:q8"),
    ],
)
async def test_failures_are_reported_and_the_file_is_kept(
    change: dict[str, object], reason: str, message: str, model: Path, tmp_path: Path, server: tuple[Ollama, str]
) -> None:
    stand_in, url = server
    for name, value in change.items():
        setattr(stand_in, name, value)
    with pytest.raises(TrainerError, match=message) as caught:
        await run(model, tmp_path, url)
    assert caught.value.reason == reason
    assert (tmp_path / "model-q8_0.gguf").exists()
    assert not stand_in.models


async def test_no_server_is_listening(model: Path, tmp_path: Path, unused_tcp_port: int) -> None:
    with pytest.raises(TrainerError, match=f"Ollama at http://127.0.0.1:{unused_tcp_port}") as caught:
        await run(model, tmp_path, f"http://127.0.0.1:{unused_tcp_port}")
    assert caught.value.reason == "DependencyUnavailable"
