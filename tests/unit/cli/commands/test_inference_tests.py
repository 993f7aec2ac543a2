"""`clotho test`: its result, who is at fault, and that nothing is left behind."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Any

import pytest

from clotho.cli import arguments
from clotho.cli.commands import inference_tests
from clotho.cli.failure import Exit, Failure
from clotho.cluster.outcomes import Transient
from clotho.workspace import inference_tests as waiting
from rig.fake_api import FakeApi, described


def options(*words: str) -> argparse.Namespace:
    return arguments.parse("clotho", words)


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    fake.add("Environment", "echo", {"entry": "echo.py"}, described())
    return fake


@pytest.mark.parametrize(("works", "code"), [(True, 0), (False, 1)])
async def test_exit_code_follows_the_result_of_the_test(
    api: FakeApi, works: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0)
    specs: list[dict[str, Any]] = []
    create = api.create

    async def finish_at_once(path: str, body: Any, answer: type[Any], **params: str) -> Any:
        specs.append(body["spec"])
        made = await create(path, body, answer, **params)
        samples: Any = [{"prompt": f"{n} + 1\n=", "answer": "7", "score": n} for n in (1, 6)]
        model: dict[str, Any] = {
            "name": "qwen/qwen3-8b",
            "size": "small",
            "phase": "Failed",
            "error": "Traceback\nboom",
        }
        model["samples"] = samples
        summary = {"requested": 1, "tested": 1, "succeeded": 1, "environmentWorks": works}
        made["status"] = {"phase": "Completed", "models": [model], "summary": summary, "message": "One model made it."}
        return made

    monkeypatch.setattr(api, "create", finish_at_once)
    words = ["echo", "--model", "qwen/qwen3-8b", "--secret", "keys", "--base-url", "http://x/v1", "--set", "mode=hard"]
    assert await inference_tests.test(options("test", *words), api.workspace) == code
    assert specs[0]["models"] == [{"name": "qwen/qwen3-8b", "size": "small", "baseUrl": "http://x/v1"}]
    assert specs[0]["secretName"] == "keys"
    assert specs[0]["config"] == {"mode": "hard"}
    printed, notes = capsys.readouterr()
    assert "boom" in printed
    assert f"{printed}{notes}".count("One model made it.") == 1
    assert "qwen/qwen3-8b, score 6.00:\n  prompt  6 + 1 =\n  answer  7\n" in printed
    assert await api.workspace.all("InferenceTest") == [], "it is tidied away"


async def interrupted_test(api: FakeApi, *words: str) -> None:
    """Ctrl-C while the test is under way: asyncio cancels the command."""
    command = asyncio.create_task(inference_tests.test(options("test", "echo", *words), api.workspace))
    await asyncio.wait({command}, timeout=0.1)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command


async def test_an_interrupted_inference_test_is_deleted(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    await interrupted_test(api)
    assert await api.workspace.all("InferenceTest") == []
    assert "is deleted; --keep keeps it" in capsys.readouterr().err


async def test_an_interrupted_inference_test_is_kept_when_asked(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    await interrupted_test(api, "--keep")
    (kept,) = await api.workspace.all("InferenceTest")
    assert "ttlSecondsAfterFinished" not in kept["spec"]
    assert f"kubectl delete inferencetest {kept['metadata']['name']}" in capsys.readouterr().err


async def test_an_inference_test_that_takes_too_long_is_deleted(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0)
    monkeypatch.setattr(waiting, "SLACK_SECONDS", 3600.0)  # for agents: the user's time-out has no slack
    with pytest.raises(Failure) as failure:
        await inference_tests.test(options("test", "echo", "--timeout", "1s"), api.workspace)
    assert "not finished after 1 s: the operator has not started it" in str(failure.value)
    assert failure.value.code is Exit.TIMEOUT
    assert await api.workspace.all("InferenceTest") == []


async def test_a_model_that_hangs_leaves_time_for_its_result(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0)
    with pytest.raises(Failure):
        await inference_tests.test(options("test", "echo", "--timeout", "4s", "--keep"), api.workspace)
    (test,) = await api.workspace.all("InferenceTest")
    assert test["spec"]["timeoutSeconds"] == 3


@pytest.mark.parametrize("field", ["training.steps", "trainer.template"])
async def test_a_test_has_no_fields_of_a_run(api: FakeApi, field: str) -> None:
    with pytest.raises(Failure) as failure:
        await inference_tests.test(options("test", "echo", "--set", f"{field}=3"), api.workspace)
    assert f"--set {field}: this is a field of runs" in str(failure.value)
    assert not any(request.startswith("create") for request in api.requests)


async def test_a_terminated_inference_test_is_deleted(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    is_created, get = asyncio.Event(), api.get

    async def note(*request: Any, **params: str) -> Any:
        is_created.set()
        return await get(*request, **params)

    monkeypatch.setattr(api, "get", note)
    testing = asyncio.create_task(inference_tests.test(options("test", "echo"), api.workspace))
    await is_created.wait()
    assert await api.workspace.all("InferenceTest") != []
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Failure) as failure:
        await testing
    assert failure.value.code is Exit.TERMINATED
    assert await api.workspace.all("InferenceTest") == []


UNAUTHORIZED = "InferenceUnauthorizedError: the inference server at http://m refuses our token (401)"
UNREACHABLE = "InferenceUnavailableError: no answer from the inference server at http://m"


@pytest.mark.parametrize(
    ("tested", "errors", "blamed"),
    [
        (1, [None, "x"], "The environment runs. No model made all its groups."),
        (0, ["The pod cannot be started (CreateContainerConfigError): no key x."], "its pods lack something."),
        (0, [UNAUTHORIZED], "the models' API rejected the key. Check the key OPENAI_API_KEY in Secret keys."),
        (
            0,
            [UNREACHABLE, UNAUTHORIZED],
            "Check --base-url and --model; a Service of the cluster is NAME:PORT",
        ),
        (0, ["KeyError: 'answer' (env.py:3)", UNREACHABLE], "The environment does not work yet."),
        (0, [], "The environment does not work yet."),
    ],
)
def test_the_summary_names_the_cause_of_failure(tested: int, errors: list[str | None], blamed: str) -> None:
    summary = {"environment_works": False, "best_model": None, "models_tested": tested}
    answer = {
        "summary": summary,
        "message": "",
        "models_tested": [{"error": each, "status": "failed"} for each in errors],
    }
    assert blamed in inference_tests.verdict(answer, "keys")


def test_a_test_that_was_refused_does_not_blame_the_environment() -> None:
    answer = {
        "summary": {"environment_works": False, "models_tested": 0},
        "message": "The spec is not allowed: models[0].baseUrl: m is in another namespace.",
        "models_tested": [{"error": None, "status": "pending"}],
    }
    assert inference_tests.verdict(answer, "keys") == f"The environment was not tested. {answer['message']}"


def test_a_success_is_reported_once() -> None:
    message = "The environment works: 1 of 1 model, best m."
    answer = {"summary": {"environment_works": True}, "message": message, "models_tested": []}
    assert inference_tests.verdict(answer, "keys") == message


async def test_an_inference_test_that_cannot_be_deleted_expires(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("get", "delete"):
        api.refusals[f"{verb} {api.workspace.folder('InferenceTest')}"] = Transient(verb, "no answer from the cluster")
    with pytest.raises(Transient):
        await inference_tests.test(options("test", "echo"), api.workspace)
    (left,) = await api.workspace.all("InferenceTest")
    assert left["spec"]["ttlSecondsAfterFinished"] == 86400
    assert "expires 24 hours after it has finished: no answer from the cluster" in capsys.readouterr().err
