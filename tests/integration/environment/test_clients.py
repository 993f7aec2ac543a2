"""The policy and the API server as the kit's clients see them, over real sockets."""

import asyncio
import dataclasses
import io
import json
import logging
import tarfile

import pytest
from aiohttp import web

from clotho_contract.api_protocol import RegisterEnv
from clotho_environment import Completion, Group, InferenceError, InferenceUnavailableError
from clotho_environment.clients.api_server import ApiServer, ApiServerRefusedError
from clotho_environment.clients.connections import open_session
from clotho_environment.commands.wait import RefusedError, Waiter
from clotho_environment.pod.tokenizer import TokenizerError, for_every_reader, unpack_tokenizer
from clotho_environment.sdk.conversation import Conversation
from clotho_environment.sdk.group import InvalidGroupError
from clotho_environment.sdk.recorder import Recorder
from clotho_environment.sdk.sampling import Defaults, InferenceUnauthorizedError, SamplingClient
from integration.environment.stand_ins import TOKEN

ATTEMPT = Completion(text="b", prompt_tokens=(1,), tokens=(2,), logprobs=(-0.5,))
GROUP = Group([ATTEMPT], [1.0])


@pytest.fixture
async def session():
    async with open_session(TOKEN) as opened:
        yield opened


@pytest.fixture
def client(session, inference):
    return SamplingClient(session, inference.url, model="tiny", defaults=Defaults(n=3, max_tokens=8), limit_seconds=0.5)


class TestSamplingClient:
    async def test_complete_chat_and_generate_return_the_same(self, client, inference):
        inference.reply = lambda _: "xy"
        by_text = await client.complete("ab")
        by_chat = await client.chat([{"role": "user", "content": "ab"}])
        by_tokens = await client.generate([97, 98])
        for completions in (by_text, by_chat, by_tokens):
            assert len(completions) == 3
            assert completions[0].text == "xy"
            assert completions[0].sequence.tokens == (97, 98, 120, 121)
            assert completions[0].policy_version == 3

    async def test_sampling_parameters_pass_through(self, client, inference):
        await client.complete("ab", n=1, max_tokens=4, stop=["\n"], top_p=0.9)
        body = inference.bodies[0]
        assert {key: body[key] for key in ("n", "max_tokens", "stop", "top_p", "model")} == {
            "n": 1,
            "max_tokens": 4,
            "stop": ["\n"],
            "top_p": 0.9,
            "model": "tiny",
        }
        await client.generate([97], temperature=0.5)
        assert inference.bodies[1]["sampling_params"] == {"temperature": 0.5, "max_new_tokens": 8, "n": 3}

    async def test_tools_are_handed_on(self, client, inference):
        tools = [{"type": "function", "function": {"name": "add"}}]
        await client.chat([{"role": "user", "content": "ab"}], tools=tools)
        assert inference.bodies[0]["tools"] == tools

    async def test_servers_that_ignore_n_get_one_request_per_completion(self, client, inference):
        inference.ignores_n = True
        assert len(await client.complete("ab")) == 3

    async def test_a_conversation_of_several_turns(self, client, inference):
        conversation = client.conversation([{"role": "user", "content": "a"}])
        assert isinstance(conversation, Conversation)
        await conversation.reply()
        conversation.say("b")
        await conversation.reply()
        assert [m["content"] for m in conversation.messages] == ["a", "a" * 8, "b", "b" * 8]
        assert inference.bodies[1]["n"] == 1

    @pytest.mark.parametrize("status", [429, 500, 503])
    async def test_transient_errors_are_retried(self, client, inference, status):
        inference.troubles.append(web.Response(status=status, headers={"Retry-After": "0"}))
        assert len(await client.complete("ab")) == 3

    async def test_long_outages_are_unavailability(self, client, inference):
        await inference.stop()
        with pytest.raises(InferenceUnavailableError, match="no answer from the inference server"):
            await client.complete("ab")

    async def test_a_refused_token_raises_unauthorized(self, client, inference):
        inference.troubles.append(web.Response(status=401))
        with pytest.raises(InferenceUnauthorizedError, match="refuses our token"):
            await client.complete("ab")

    async def test_a_wrong_request_is_not_tried_again(self, client, inference):
        inference.troubles.append(web.json_response({"detail": "the prompt is empty"}, status=400))
        with pytest.raises(InferenceError, match="the prompt is empty"):
            await client.complete("")
        assert len(inference.requests) == 1

    async def test_a_server_without_token_ids_cannot_be_trained_on(self, client, inference):
        inference.has_tokens = False
        with pytest.raises(InferenceError, match="return_token_ids"):
            await client.complete("ab")


class TestApiServer:
    @pytest.fixture
    def client(self, session, api_server):
        return ApiServer(session, api_server.url, RegisterEnv(64, "env", weight=1.0, group_size=1))

    async def test_a_group_is_handed_in_under_our_id(self, client, api_server):
        await client.submit(GROUP, [ATTEMPT.sequence])
        assert [group["env_id"] for group in api_server.groups] == [1]
        assert await client.current_step() == 1

    async def test_waiting_for_the_trainer_is_logged_once(self, client, api_server, caplog):
        caplog.set_level(logging.INFO)
        api_server.registrations_to_delay = 3
        await client.register()
        assert caplog.text.count("asks to wait: wait for trainer to start") == 1

    async def test_many_workers_register_once(self, client, api_server):
        await asyncio.gather(*(client.submit(GROUP, [ATTEMPT.sequence]) for _ in range(5)))
        assert len(api_server.registrations) == 1

    async def test_outages_are_waited_for(self, client, api_server):
        await client.register()
        await api_server.stop()
        submitting = asyncio.create_task(client.submit(GROUP, [ATTEMPT.sequence]))
        await asyncio.sleep(0)
        await api_server.start()
        await asyncio.wait_for(submitting, 30)
        assert len(api_server.groups) == 1

    async def test_a_group_whose_answer_got_lost_counts_once(self, client, api_server):
        api_server.answers_to_lose = 2
        await client.submit(GROUP, [ATTEMPT.sequence])
        await client.submit(GROUP, [ATTEMPT.sequence])
        assert len(api_server.groups) == 2
        assert len(api_server.keys) == 4
        assert len(set(api_server.keys)) == 2

    async def test_a_group_that_has_to_wait_is_not_overtaken(self, client, api_server):
        await client.register()
        api_server.troubles += [web.Response(status=429, headers={"Retry-After": "1"}) for _ in range(3)]
        marked = [dataclasses.replace(GROUP, scores=[float(number)]) for number in range(5)]
        await asyncio.gather(*(client.submit(group, [ATTEMPT.sequence]) for group in marked))
        assert [group["scores"] for group in api_server.groups] == [group.scores for group in marked]

    async def test_it_takes_groups_at_once_while_nothing_holds_them_up(self, client, api_server):
        await client.register()
        taken = [client.accepts_at_once]
        full, busy = web.Response(status=429, headers={"Retry-After": "0"}), web.Response(status=503)
        for trouble in ([], [full], [busy], []):
            api_server.troubles += trouble
            await client.submit(GROUP, [ATTEMPT.sequence])
            taken.append(client.accepts_at_once)
        assert taken == [False, True, False, False, True]

    async def test_refused_groups_name_the_problem(self, client, api_server):
        detail = [{"loc": ["body", "scores", 0], "msg": "scores[0]: too large", "type": "value_error"}]
        await client.register()
        api_server.troubles.append(web.json_response({"detail": detail}, status=422))
        with pytest.raises(InvalidGroupError, match=r"422 scores\[0\]: too large"):
            await client.submit(GROUP, [ATTEMPT.sequence])

    async def test_a_refused_registration_is_final(self, client, api_server):
        api_server.troubles.append(web.json_response({"detail": "group_size: 3 does not divide 8"}, status=422))
        with pytest.raises(ApiServerRefusedError, match="group_size: 3 does not divide 8"):
            await client.register()

    async def test_deregistering_from_an_absent_server_does_not_hang(self, client, api_server):
        await client.register()
        await api_server.stop()
        await client.disconnect()


class TestRecorder:
    async def test_turns_are_kept_by_session(self, client, session, inference):
        inference.reply = lambda prompt: prompt.upper()
        async with Recorder(client).listening() as recorder:
            for name in ("one", "two"):
                request = {"model": "m", "messages": [{"role": "user", "content": name}], "max_tokens": 5}
                headers = {"X-Session-ID": name}
                async with session.post(
                    f"{recorder.base_url}/chat/completions", json=request, headers=headers
                ) as response:
                    answer = await response.json()
                assert answer["choices"][0]["message"]["content"] == name.upper()
            assert recorder.take("two").text == "TWO"
            assert recorder.take("one").sequence.tokens == tuple(map(ord, "oneONE"))
            assert recorder.take("one").turns == []
        assert inference.bodies[0]["max_tokens"] == 5

    async def test_agents_receive_errors_for_invalid_requests_and_outages(self, client, session, inference):
        async with Recorder(client).listening() as recorder:
            url = f"{recorder.base_url}/chat/completions"
            async with session.post(url, json={"messages": [], "stream": True}) as response:
                assert response.status == 400
            async with session.post(url, data=b"nonsense") as response:
                assert response.status == 400
            await inference.stop()
            async with session.post(url, json={"messages": [{"role": "user", "content": "a"}]}) as response:
                assert response.status == 503


def archive(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/").replace("_json", ".json"))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    return buffer.getvalue()


class TestWait:
    @pytest.fixture
    def waiter(self, session, api_server, inference):
        return Waiter(session, api_server=api_server.url, inference=inference.url, poll_seconds=0.01)

    async def test_each_precondition_is_waited_for_and_the_tokenizer_arrives(
        self, waiter, api_server, inference, tmp_path
    ):
        api_server.trainer_is_registered = False
        await inference.stop()
        waiting = asyncio.create_task(waiter.wait(tmp_path / "tokenizer"))
        await api_server.wait_for_requests("/info", times=2)
        api_server.trainer_is_registered = True
        await inference.start()
        inference.archive = archive(tokenizer_json="{}", tokenizer_config_json='{"tokenizer_class": "X"}')
        await asyncio.wait_for(waiting, 30)
        assert sorted(path.name for path in (tmp_path / "tokenizer").iterdir()) == [
            "tokenizer.json",
            "tokenizer_config.json",
        ]

    async def test_a_wrong_token_is_not_waited_out(self, api_server, inference, tmp_path):
        async with open_session("wrong") as session:
            waiter = Waiter(session, api_server=api_server.url, inference=inference.url)
            with pytest.raises(RefusedError, match="refuses our token") as refusal:
                await waiter.wait(tmp_path)
        assert refusal.value.reason == "Unauthorized"

    async def test_an_invalid_archive_is_refused(self, waiter, inference, tmp_path):
        inference.archive = b"not a tar file at all"
        with pytest.raises(RefusedError, match="not a sound archive"):
            await waiter.wait(tmp_path)


def test_an_archive_cannot_write_outside_its_folder(tmp_path):
    with pytest.raises(TokenizerError):
        unpack_tokenizer(archive(**{"..__evil_json": "{}"}), tmp_path / "tokenizer")
    assert not (tmp_path / "evil.json").exists()


def test_new_tokenizers_become_readable_for_old_readers():
    saved = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"], "eos_token": "<e>"}
    assert for_every_reader(saved) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<a>"],
        "eos_token": "<e>",
    }
    assert for_every_reader({"tokenizer_class": "Qwen2Tokenizer"}) == {"tokenizer_class": "Qwen2Tokenizer"}


def test_an_unpacked_config_is_the_readable_one(tmp_path):
    unpack_tokenizer(archive(tokenizer_config_json='{"tokenizer_class": "TokenizersBackend"}'), tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
