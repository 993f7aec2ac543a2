"""The `openai` package's own client against the inference port."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer

from clotho_trainer.inference.server import InferenceServer
from clotho_trainer.inference.service import Service
from clotho_trainer.training.local.backend import LocalBackend
from integration.trainer import tool_model
from integration.trainer.tiny import backend, config

TOKEN = "a-token"
MODEL = "tiny/model"
CHAT: Any = [{"role": "user", "content": [{"type": "text", "text": "b>"}]}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "calculate", "parameters": {"type": "object", "properties": {"expression": {}}}},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def serve(policy: LocalBackend) -> AsyncIterator[openai.AsyncOpenAI]:
    server = InferenceServer(TOKEN)
    server.service = Service(policy.engine, policy.tokenizer, MODEL, policy.context, policy.vocabulary, 1.0)
    await policy.engine.start()
    async with TestServer(server.application()) as running:
        url = str(running.make_url("/v1"))
        async with openai.AsyncOpenAI(base_url=url, api_key=TOKEN, max_retries=0) as client:
            yield client
    await policy.engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[openai.AsyncOpenAI]:
    async for running in serve(backend(config(model), tmp_path_factory.mktemp("work"))):
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool_client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[openai.AsyncOpenAI]:
    """A model that calls its calculator in about half of the answers."""
    folder = tmp_path_factory.mktemp("tools")
    tool_model.write(folder)
    async for running in serve(backend(config(folder), tmp_path_factory.mktemp("work"))):
        yield running


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    (entry,) = [entry async for entry in client.models.list()]
    assert (entry.id, entry.object, entry.owned_by) == (MODEL, "model", "clotho")
    assert entry.created > 0


async def test_chat_completions_have_content_and_log_probabilities(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=CHAT, max_completion_tokens=5, n=2, logprobs=True, top_logprobs=3, seed=1
    )
    for choice in answer.choices:
        assert choice.message.content is not None
        assert choice.logprobs is not None
        for entry in choice.logprobs.content or []:
            assert len(entry.top_logprobs) == 3
            assert entry.top_logprobs[0].logprob >= entry.logprob - 1e-6, "the likeliest first"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4


async def test_a_streamed_chat_is_the_whole_answer_in_parts(client: openai.AsyncOpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": CHAT, "max_tokens": 30, "temperature": 0}
    fields["extra_body"] = {"ignore_eos": True}
    whole = await client.chat.completions.create(**fields)
    stream = await client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert len(deltas) > 3
    assert deltas[0].role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert chunks[-1].usage == whole.usage


async def test_completions_with_echo_and_log_probabilities(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="ab>", max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text == "ab>"
    assert choice.logprobs is not None
    assert (choice.logprobs.token_logprobs or [0])[0] is None
    assert len(choice.logprobs.tokens or []) == 3


async def test_streamed_completions_of_several_prompts(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt=["a>", "b>"], n=2, max_tokens=4, stream=True, logprobs=0, echo=True
    )
    texts = dict.fromkeys(range(4), "")
    ended = {}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ended[choice.index] = choice.finish_reason
    assert [texts[index][:2] for index in range(4)] == ["a>", "a>", "b>", "b>"]
    assert sorted(ended) == [0, 1, 2, 3]


async def test_errors_are_the_packages_own(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError, match="response_format json_object is not supported"):
        await client.chat.completions.create(model=MODEL, messages=CHAT, response_format={"type": "json_object"})
    with pytest.raises(openai.BadRequestError, match="max_tokens 5000 does not fit"):
        await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=5000)
    image: Any = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError, match="parts of type image_url are not supported"):
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": image}])
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()


async def test_tool_calls(tool_client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x+1"}]
    fields: Any = {"model": MODEL, "messages": messages, "max_tokens": 40, "tools": [TOOL], "seed": 3}
    answer = await tool_client.chat.completions.create(**fields, n=16)
    called = [choice for choice in answer.choices if choice.message.tool_calls]
    plain = [choice for choice in answer.choices if not choice.message.tool_calls]
    assert called
    assert plain
    assert {choice.finish_reason for choice in called} == {"tool_calls"}
    message = called[0].message
    (call,) = message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "calculate"
    assert json.loads(call.function.arguments)["expression"].startswith("x+")
    assert not message.content
    result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
    history = [*messages, message.model_dump(exclude_none=True), result]
    reply = await tool_client.chat.completions.create(**(fields | {"messages": history}))
    assert reply.choices[0].message.content is not None
    unparsed = await tool_client.chat.completions.create(**fields, n=16, tool_choice="none")
    assert not any(choice.message.tool_calls for choice in unparsed.choices)


async def test_streamed_tool_calls_arrive_whole(tool_client: openai.AsyncOpenAI) -> None:
    stream = await tool_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x+1"}], tools=[TOOL], n=16, max_tokens=40, stream=True
    )
    reasons = []
    names = []
    async for chunk in stream:
        for choice in chunk.choices:
            names += [call.function.name for call in choice.delta.tool_calls or [] if call.function]
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert names
    assert set(names) == {"calculate"}
    assert reasons.count("tool_calls") == len(names)
