"""The inference port as its clients use it: SGLang's and OpenAI's dialects, the token, and the tokenizer's files."""

import asyncio
import base64
import io
import json
import tarfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from clotho_dev.ports import free_port
from clotho_trainer.inference import chat
from clotho_trainer.inference.core.engine import Completion, Request, Scores
from clotho_trainer.inference.requests import BadRequestError, ChatRequest
from clotho_trainer.inference.server import InferenceServer
from clotho_trainer.inference.service import Service
from clotho_trainer.process.app import listening
from integration.trainer.served import TOKEN, Client, served
from integration.trainer.tiny import backend, config

BEARER = {"Authorization": f"Bearer {TOKEN}"}
CHAT = {"messages": [{"role": "user", "content": "b>"}], "max_tokens": 3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with served(model, tmp_path_factory.mktemp("work")) as running:
        yield running


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


async def test_flat_log_probabilities_are_those_that_sglang_has_beside_tokens(client: Client) -> None:
    body = {"input_ids": [6, 7], "return_logprob": True, "sampling_params": {"max_new_tokens": 9, "temperature": 0}}
    with_tokens = await post(client, "/generate", body)
    flat = await post(client, "/generate", body | {"flat_logprobs": True})
    assert "output_token_logprobs" not in flat["meta_info"]
    beside_tokens = [logprob for logprob, _, _ in with_tokens["meta_info"]["output_token_logprobs"]]
    assert flat["meta_info"]["output_logprobs"] == pytest.approx(beside_tokens, rel=1e-5)
    *_, last = await events(client, "/generate", body | {"flat_logprobs": True})
    assert len(last["meta_info"]["output_logprobs"]) == len(last["output_ids"]) == len(beside_tokens)
    none = await post(client, "/generate", body | {"flat_logprobs": True, "return_logprob": False})
    assert "output_logprobs" not in none["meta_info"]


async def test_completions_answer_as_openai_does_with_token_ids(client: Client) -> None:
    body = {"model": "tiny/model", "prompt": "a>", "n": 2, "max_tokens": 4, "logprobs": 1, "ignore_eos": True}
    specials = ("<eos>", "<pad>", "<unk>", "<|user|>", "<|assistant|>")
    answer = await post(client, "/v1/completions", body)
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
    for index, choice in enumerate(answer["choices"]):
        assert choice["index"] == index
        assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 4
        assert choice["text"] == "".join(text for text in choice["logprobs"]["tokens"] if text not in specials)
        assert choice["policy_version"] == 0
    health = await post(client, "/v1/completions", {"model": "", "prompt": "hi", "max_tokens": 1})
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
        entry = (await response.json())["data"][0]
        assert entry["id"] == "tiny/model"
        assert abs(entry["created"] - time.time()) < 3600
    async with client.get("/health") as response:
        assert response.status == 200


async def test_the_tokenizer_is_served_as_an_archive(client: Client, tmp_path: Path) -> None:
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
        ("Basic " + base64.b64encode(f"user:{TOKEN}".encode()).decode(), 200),
        ("Bearer wrong", 401),
        ("Basic " + base64.b64encode(b"user:wrong").decode(), 401),
        ("Basic !!!", 401),
        ("", 401),
    ],
)
async def test_the_token_is_required(client: Client, authorization: str, status: int) -> None:
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
        ("/v1/completions", {"prompt": "a", "max_tokens": "many"}, "Expected `int | null`"),
        ("/v1/completions", {"prompt": "a" * 600}, "the prompt has 600 tokens; the model's context is 512"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 512}, "max_tokens 512 does not fit"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens 0 needs echo"),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "Expected `int` <= 20"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix is not supported"),
        ("/v1/completions", {"prompt": "a", "n": 2, "best_of": 4}, "best_of is not supported"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"100000": 1}}, "is no token id in 0.."),
        ("/v1/completions", {"prompt": "a", "stream_options": {}}, "stream_options needs stream: true"),
        ("/v1/chat/completions", {"messages": []}, "messages is empty"),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}, "response_format json_object is"),
        ("/v1/chat/completions", CHAT | {"top_logprobs": 2}, "top_logprobs needs logprobs: true"),
        ("/v1/chat/completions", CHAT | {"guided_json": {"type": "object"}}, "guided_json is not supported"),
        ("/v1/chat/completions", CHAT | {"tool_choice": "required"}, "only auto and none are supported"),
        ("/v1/chat/completions", CHAT | {"chat_template": "{{ 1 }}"}, "chat_template is not accepted"),
        (
            "/v1/chat/completions",
            CHAT | {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
            "chat_template_kwargs.chat_template is not accepted",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content: parts of type image_url are not supported",
        ),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "messages[0].role is missing"),
        ("/generate", {"text": "a", "sampling_params": {"json_schema": "{}"}}, "json_schema is not supported"),
        ("/generate", {"text": "a", "image_data": "x"}, "image_data is not supported"),
    ],
)
async def test_bad_requests_are_refused_with_a_reason(client: Client, path: str, body: Any, sentence: str) -> None:
    answer = await post(client, path, body, status=400)
    assert sentence in answer["detail"]
    assert answer["error"]["message"] == answer["detail"]


async def test_a_tokenizer_without_chat_template_is_refused_with_a_reason(model: Path, tmp_path: Path) -> None:
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


async def test_a_disconnected_client_cancels_its_request() -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    class Waiting:
        async def start(self) -> None: ...

        async def publish(self) -> None: ...

        async def stop(self) -> None: ...

        def problem(self) -> str | None:
            return None

        async def score(self, tokens: tuple[int, ...], top: int) -> Scores:
            raise NotImplementedError

        async def generate(self, request: Request) -> list[Completion]:
            asked.set()
            try:
                return await asyncio.Future[list[Completion]]()
            finally:
                given_up.set()

    server = InferenceServer(TOKEN)
    counts: list[int] = []
    server.service = Service(Waiting(), None, "tiny/model", 96, 64, 1.0, count_sequences=counts.append)
    port = free_port()
    async with listening(server.application(), "127.0.0.1", port), ClientSession(headers=BEARER) as session:
        body = {"input_ids": [6], "sampling_params": {"max_new_tokens": 5}}
        request = asyncio.create_task(session.post(f"http://127.0.0.1:{port}/generate", json=body))
        await asyncio.wait_for(asked.wait(), 30)
        request.cancel()
        await asyncio.wait_for(given_up.wait(), 30)
    assert counts == [1, -1], "sequences in flight"


async def test_503_while_the_model_loads() -> None:
    async with TestClient(TestServer(InferenceServer(TOKEN).application())) as client:
        for path in ("/health", "/v1/models"):
            async with client.get(path, headers=BEARER) as response:
                assert response.status == 503
                assert response.headers["Retry-After"] == "1"
                assert (await response.json())["detail"] == "the model is still loading"


async def test_an_unknown_model_is_not_found(client: Client) -> None:
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", CHAT)):
        answer = await post(client, path, body | {"model": "other"}, status=404)
        assert answer["detail"] == "the model 'other' does not exist; this server has tiny/model"


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_deeply_nested_bodies_are_refused(client: Client, path: str) -> None:
    nested = "[" * 100_000 + "]" * 100_000
    body = f'{{"tools": {nested}, "prompt": {nested}, "text": {nested}}}'
    async with client.post(path, data=body, headers=BEARER) as response:
        assert response.status == 400
    messages = f'{{"messages": [{{"role": "user", "content": "a", "more": {nested}}}]}}'
    async with client.post("/v1/chat/completions", data=messages, headers=BEARER) as response:
        assert (response.status, (await response.json())["detail"]) == (400, "JSON is nested too deeply")


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_bodies_that_are_not_utf8_are_refused(client: Client, path: str) -> None:
    async with client.post(path, data=b'{"model": "\xff", "text": "\xff"}', headers=BEARER) as response:
        assert (response.status, (await response.json())["detail"]) == (400, "JSON is not UTF-8: invalid start byte")


async def test_text_parts_of_a_message_are_joined(client: Client) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content in (parts, "a\nb"):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        answer = await post(client, "/v1/chat/completions", body)
        assert answer["usage"]["prompt_tokens"] == 5, "<|user|> a newline b <|assistant|>"


async def test_a_template_that_does_not_finish_holds_nothing_else_up(client: Client, model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    released = threading.Event()

    def wait(_: Any, **__: Any) -> str:
        released.wait(30)
        return ""

    tokenizer.apply_chat_template = wait
    rendering = asyncio.create_task(
        chat.render(tokenizer, "m", ChatRequest(messages=[{"role": "user", "content": "a"}]), limit_seconds=0.05)
    )
    async with client.get("/health") as response:  # the event loop goes on
        assert response.status == 200
    with pytest.raises(BadRequestError, match="the chat template did not finish within"):
        await rendering
    released.set()


async def test_echo_returns_the_prompt_with_its_log_probabilities(client: Client) -> None:
    body = {"prompt": "ab>", "echo": True, "logprobs": 2, "max_tokens": 0}
    (choice,) = (await post(client, "/v1/completions", body))["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab>", ["a", "b", ">"])
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert all(value < 0 for value in others)
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [2, 2]
    sampled = await post(client, "/v1/completions", body | {"prompt": "ab", "max_tokens": 1, "temperature": 0})
    token, logprob = (sampled["choices"][0]["logprobs"][name][-1] for name in ("tokens", "token_logprobs"))
    again = await post(client, "/v1/completions", body | {"prompt": f"ab{token}"})
    assert again["choices"][0]["logprobs"]["token_logprobs"][-1] == pytest.approx(logprob, abs=1e-4)


async def test_generate_scores_the_prompt_on_request(client: Client) -> None:
    body = {"input_ids": [6, 7, 8], "return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 3}
    meta = (await post(client, "/generate", body | {"sampling_params": {"max_new_tokens": 2}}))["meta_info"]
    assert [token for _, token, _ in meta["input_token_logprobs"]] == [7, 8]
    assert [len(top) for top in meta["output_top_logprobs"]] == [3] * meta["completion_tokens"]


async def test_the_same_seed_gives_the_same_samples(client: Client) -> None:
    body = {"prompt": "ab>", "seed": 7, "n": 3, "max_tokens": 12, "ignore_eos": True}
    first, again, other = [
        [choice["token_ids"] for choice in (await post(client, "/v1/completions", body | change))["choices"]]
        for change in ({}, {}, {"seed": 8})
    ]
    assert first == again
    assert first != other
    assert first[0] != first[1], "the samples of one request differ"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"logit_bias": {"9": 100}}, [9] * 6),
        ({"logit_bias": {"9": 100}, "frequency_penalty": 2, "presence_penalty": 2}, [9] * 6),
        ({"min_p": 1.0, "temperature": 5.0}, "greedy"),
        ({"top_k": 1, "temperature": 5.0}, "greedy"),
        ({"repetition_penalty": 100.0, "temperature": 0}, "distinct"),
        ({"frequency_penalty": 2, "presence_penalty": 2, "logit_bias": {"9": 2, "10": 2}}, "any"),
    ],
)
async def test_sampling_fields_have_their_effect(client: Client, change: dict[str, Any], expected: Any) -> None:
    body = {"prompt": "ab>", "max_tokens": 6, "ignore_eos": True}
    greedy = (await post(client, "/v1/completions", body | {"temperature": 0}))["choices"][0]["token_ids"]
    tokens = (await post(client, "/v1/completions", body | change))["choices"][0]["token_ids"]
    if expected == "greedy":
        assert tokens == greedy
    elif expected == "distinct":
        assert len({*tokens, 5, 6, 44}) >= len(tokens)
        assert len(set(tokens)) == len(tokens)
    elif expected != "any":
        assert tokens == expected


async def events(client: Client, path: str, body: Any) -> list[Any]:
    async with client.post(path, json=body | {"stream": True}, headers=BEARER) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_generate_streams_the_text_so_far(client: Client) -> None:
    body = {"text": "ab>", "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}}
    whole = await post(client, "/generate", body)
    parts = await events(client, "/generate", body)
    assert parts[-1]["text"] == whole["text"]
    assert len(parts) > 3
    assert [part["meta_info"]["completion_tokens"] for part in parts] == sorted(
        part["meta_info"]["completion_tokens"] for part in parts
    )
    assert parts[-1]["meta_info"]["policy_version"] == 0


async def test_a_stream_never_shows_the_stop_string(client: Client) -> None:
    body = {"prompt": "ab>", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    text = (await post(client, "/v1/completions", body))["choices"][0]["text"]
    stop = text[6:9]
    parts = await events(client, "/v1/completions", body | {"stop": stop})
    assert "".join(part["choices"][0]["text"] for part in parts) == text[: text.index(stop)]
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_refused_stream_is_an_ordinary_error(client: Client) -> None:
    answer = await post(client, "/generate", {"input_ids": [5] * 512, "stream": True}, status=400)
    assert answer["detail"] == "the prompt has 512 tokens; the model's context is 512"
