"""The inference port as its clients use it: SGLang's and OpenAI's dialects, the token, and the tokenizer's files."""

import asyncio
import base64
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from clotho_dev.ports import free_port
from clotho_trainer.inference.core.engine import Completion, Request
from clotho_trainer.inference.server import InferenceServer, Service
from clotho_trainer.process.app import listening
from integration.trainer.tiny import backend, config

TOKEN = "the-run's-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
Client = TestClient[Any, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    policy = backend(config(model), tmp_path_factory.mktemp("work"))
    server = InferenceServer(TOKEN)
    server.service = Service(policy.engine, policy.tokenizer, "tiny/model", policy.context, policy.vocabulary, 1.0)
    await policy.engine.start()
    async with TestClient(TestServer(server.application())) as running:
        yield running
    await policy.engine.stop()


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(client: Client, path: str, body: Any, status: int = 200) -> Any:
    async with client.post(path, json=body, headers=BEARER) as response:
        answer = await response.json()
        assert response.status == status, answer
        if status == 200:
            assert response.headers["X-Clotho-Policy-Version"] == "0"
        return answer


async def test_generate_answers_as_sglang_does(client: Client) -> None:
    request = {
        "input_ids": [6, 7],
        "sampling_params": {"n": 1, "max_new_tokens": 5, "temperature": 1.0, "stop": ["zz", 3], "ignore_eos": True},
        "return_logprob": True,
        "return_text_in_logprobs": False,
    }
    one = await post(client, "/generate", request)
    meta = one["meta_info"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == one["output_ids"]
    assert all(logprob < 0 for logprob, _, _ in meta["output_token_logprobs"])
    assert meta["finish_reason"]["type"] in ("length", "stop")
    assert (meta["policy_version"], meta["prompt_tokens"]) == (0, 2)
    several = await post(client, "/generate", request | {"sampling_params": {"n": 3, "max_new_tokens": 2}})
    assert len(several) == 3
    batch = await post(client, "/generate", {"input_ids": [[6], [7, 8]], "sampling_params": {"max_new_tokens": 1}})
    assert [answer["meta_info"]["prompt_tokens"] for answer in batch] == [1, 2]


async def test_completions_answer_as_openai_does_with_token_ids(client: Client) -> None:
    body = {"model": "any", "prompt": "a>", "n": 2, "max_tokens": 4, "logprobs": 1, "ignore_eos": True}
    specials = ("<eos>", "<pad>", "<unk>", "<|user|>", "<|assistant|>")
    answer = await post(client, "/v1/completions", body)
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
    for index, choice in enumerate(answer["choices"]):
        assert choice["index"] == index
        assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 4
        assert choice["text"] == "".join(text for text in choice["logprobs"]["tokens"] if text not in specials)
        assert choice["policy_version"] == 0
    health = await post(client, "/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 1})
    assert len(health["choices"]) == 1


async def test_chat_completions_use_the_chat_template(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "b>"}], "max_tokens": 3, "logprobs": True, "n": 2}
    answer = await post(client, "/v1/chat/completions", body)
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert len(choice["prompt_token_ids"]) == 4, "<|user|> b > <|assistant|>"


async def test_models_and_health(client: Client) -> None:
    async with client.get("/v1/models", headers=BEARER) as response:
        assert (await response.json())["data"][0]["id"] == "tiny/model"
    async with client.get("/health") as response:
        assert response.status == 200


async def test_the_tokenizer_travels(client: Client, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    async with client.get("/tokenizer.tar", headers=BEARER) as response:
        archive = await response.read()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tmp_path, filter="data")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer("a>")["input_ids"]) == "a>"
    assert tokenizer.chat_template


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        ("Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode(), 200),
        ("Bearer wrong", 401),
        ("Basic " + base64.b64encode(b"anybody:wrong").decode(), 401),
        ("Basic !!!", 401),
        ("", 401),
    ],
)
async def test_the_token_opens_the_door(client: Client, authorization: str, status: int) -> None:
    async with client.get("/v1/models", headers={"Authorization": authorization}) as response:
        assert response.status == status
        if status == 401:
            assert (await response.json())["detail"] == "the run's token is missing or wrong"


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/generate", {}, "give text or input_ids"),
        ("/generate", {"input_ids": [100000]}, "a token id of the prompt is outside 0.."),
        ("/generate", {"input_ids": []}, "the prompt is empty"),
        ("/generate", {"text": "a", "sampling_params": {"n": 0}}, "Expected `int` >= 1"),
        ("/v1/completions", {"prompt": "a", "stream": True}, "stream is not supported"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "many"}, "Expected `int | null`"),
        ("/v1/completions", {"prompt": "a" * 600}, "the prompt has 600 tokens; the model's context is 512"),
        ("/v1/chat/completions", {"messages": []}, "messages is empty"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(client: Client, path: str, body: Any, sentence: str) -> None:
    answer = await post(client, path, body, status=400)
    assert sentence in answer["detail"]
    assert answer["error"]["message"] == answer["detail"]


async def test_a_tokenizer_without_chat_template_is_said_clearly(model: Path, tmp_path: Path) -> None:
    policy = backend(config(model), tmp_path)
    policy.tokenizer.chat_template = None
    server = InferenceServer(TOKEN)
    server.service = Service(policy.engine, policy.tokenizer, "base/model", policy.context, policy.vocabulary, 1.0)
    async with TestClient(TestServer(server.application())) as client:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        answer = await post(client, "/v1/chat/completions", body, status=400)
        assert answer["detail"].startswith("the tokenizer of base/model has no chat template")
        policy.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
        answer = await post(client, "/v1/chat/completions", body, status=400)
        assert answer["detail"] == "the chat template refuses these messages: roles must alternate"


async def test_a_client_that_goes_away_is_not_answered_for_nothing() -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    class Waiting:
        async def start(self) -> None: ...

        async def publish(self) -> None: ...

        async def stop(self) -> None: ...

        def problem(self) -> str | None:
            return None

        async def generate(self, request: Request) -> list[Completion]:
            asked.set()
            try:
                return await asyncio.Future[list[Completion]]()
            finally:
                given_up.set()

    server = InferenceServer(TOKEN)
    server.service = Service(Waiting(), None, "tiny/model", 96, 64, 1.0)
    port = free_port()
    async with listening(server.application(), "127.0.0.1", port), ClientSession(headers=BEARER) as session:
        body = {"input_ids": [6], "sampling_params": {"max_new_tokens": 5}}
        request = asyncio.create_task(session.post(f"http://127.0.0.1:{port}/generate", json=body))
        await asyncio.wait_for(asked.wait(), 30)
        request.cancel()
        await asyncio.wait_for(given_up.wait(), 30)


async def test_while_the_model_loads_the_answer_is_not_yet() -> None:
    async with TestClient(TestServer(InferenceServer(TOKEN).application())) as client:
        for path in ("/health", "/v1/models"):
            async with client.get(path, headers=BEARER) as response:
                assert response.status == 503
                assert response.headers["Retry-After"] == "1"
                assert (await response.json())["detail"] == "the model is still loading"
