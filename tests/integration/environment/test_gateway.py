"""The gateway between an Atropos environment and the run, with the test as the environment."""

import asyncio
import gzip
import json

import aiohttp
import pytest
from aiohttp import web

from clotho_environment.atropos.gateway import Gateway
from clotho_environment.clients.connections import open_session
from clotho_environment.pod.telemetry import Telemetry
from integration.environment.stand_ins import TOKEN, tokens_of

REGISTRATION = {"max_token_length": 64, "desired_name": "env", "weight": 1.0, "group_size": 2}


@pytest.fixture
async def gateway(api_server, inference):
    async with open_session(TOKEN) as session:
        opened = Gateway(session, Telemetry(), inference=[inference.url + "/v1"], api_server=api_server.url)
        async with opened.listening():
            yield opened


@pytest.fixture
async def child():
    """What the environment has: no token at all."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


async def register(child, gateway):
    async with child.post(gateway.api_server + "/register-env", json=REGISTRATION) as response:
        return (await response.json())["env_id"]


async def sample(child, gateway, prompt: str):
    request = {"input_ids": tokens_of(prompt), "sampling_params": {"n": 1}, "return_logprob": True}
    async with child.post(gateway.inference + "/generate", json=request) as response:
        answer = await response.json()
    return [token for _, token, _ in answer["meta_info"]["output_token_logprobs"]]


async def send(child, gateway, group, path="/scored_data", compress=False):
    body = json.dumps(group).encode()
    headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if compress else {})
    data = gzip.compress(body) if compress else body
    async with child.post(gateway.api_server + path, data=data, headers=headers) as response:
        return response.status


def group_of(*answers, **fields):
    masks = [[-100, *answer] for answer in answers]
    return {"tokens": [[1, *a] for a in answers], "masks": masks, "scores": [0.5] * len(answers), "env_id": 1} | fields


async def test_the_child_needs_no_token_and_groups_get_their_version(gateway, child, api_server, inference):
    assert gateway.unready() == "the environment has not registered"
    await register(child, gateway)
    assert gateway.unready() is None
    old = await sample(child, gateway, "a")
    inference.version = 9
    new = await sample(child, gateway, "b")
    await send(child, gateway, group_of(old, new, inference_logprobs=[[1.0, -0.5]], generation_params={"top_p": 1}))
    await send(child, gateway, [group_of(new), group_of([4242])], path="/scored_data_list", compress=True)
    mixed, fresh, unknown = api_server.groups
    assert mixed["generation_params"] == {"policy_version": 3, "top_p": 1}
    assert mixed["inference_logprobs"] == [[1.0, -0.5]]
    assert fresh["generation_params"] == {"policy_version": 9}
    assert "generation_params" not in unknown
    assert gateway.groups_sent == 3


async def test_child_is_registered_again_transparently_after_data_loss(gateway, child, api_server):
    first = await register(child, gateway)
    api_server.known.clear()
    async with child.get(gateway.api_server + "/status-env", json={"env_id": first}) as response:
        assert (await response.json())["current_step"] == 0
    await send(child, gateway, group_of([5], env_id=first))
    assert [group["env_id"] for group in api_server.groups] == [2]
    await gateway.disconnect()
    assert api_server.deregistrations == [2]


async def test_a_group_sent_after_data_loss_is_not_lost(gateway, child, api_server):
    first = await register(child, gateway)
    api_server.known.clear()
    assert await send(child, gateway, group_of([5], env_id=first)) == 200
    assert [group["env_id"] for group in api_server.groups] == [2]


async def test_requests_are_held_during_outages_and_back_pressure(gateway, child, api_server, inference):
    await register(child, gateway)
    api_server.troubles += [web.Response(status=429, headers={"Retry-After": "0.01"}), web.Response(status=503)]
    assert await send(child, gateway, group_of([5])) == 200
    await api_server.stop()
    await inference.stop()
    sending = asyncio.create_task(send(child, gateway, group_of([6])))
    sampling = asyncio.create_task(sample(child, gateway, "c"))
    await asyncio.sleep(0)
    await api_server.start()
    await inference.start()
    assert await sending == 200
    assert await sampling == tokens_of("c" * 8)
    assert len(api_server.groups) == 2


async def test_a_group_whose_answer_got_lost_counts_once(gateway, child, api_server):
    await register(child, gateway)
    api_server.answers_to_lose = 1
    for _ in range(2):
        assert await send(child, gateway, group_of([5])) == 200
    assert len(api_server.groups) == 2
    assert len(api_server.keys) == 3


async def test_a_child_that_gives_up_waiting_and_sends_again_counts_once(gateway, child, api_server):
    await register(child, gateway)
    api_server.is_silent = True
    sending = asyncio.create_task(send(child, gateway, group_of([5])))
    await api_server.groups_reach(1)
    sending.cancel()
    async with asyncio.timeout(30):
        while not gateway._given_up:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    api_server.is_silent = False
    assert await send(child, gateway, group_of([5])) == 200
    assert (len(api_server.groups), len(api_server.keys)) == (1, 2)
    assert await send(child, gateway, group_of([5])) == 200
    assert len(api_server.groups) == 2


async def test_refusals_are_passed_on_and_remembered(gateway, child, api_server, caplog):
    await register(child, gateway)
    api_server.troubles.append(web.json_response({"detail": "scores[0]: no"}, status=422))
    assert await send(child, gateway, group_of([5])) == 422
    assert "scores[0]: no" in caplog.text
    assert gateway.refusal is None
    api_server.troubles.append(web.Response(status=401))
    await send(child, gateway, group_of([5]))
    assert gateway.refusal == f"{api_server.url} refuses our token (401)"


async def test_invalid_groups_of_the_child_are_refused_and_not_fatal(gateway, child, api_server):
    await register(child, gateway)
    for nonsense in (b"[1, 2", b"{}", b'{"masks": [[NaN]], "scores": []}'):
        api_server.troubles.append(web.json_response({"detail": "masks: Field required"}, status=422))
        async with child.post(gateway.api_server + "/scored_data", data=nonsense) as response:
            assert (response.status, await response.json()) == (422, {"detail": "masks: Field required"})
    assert await send(child, gateway, group_of([5])) == 200


async def test_other_requests_are_forwarded(gateway, child, inference):
    async with child.get(gateway.api_server + "/info") as response:
        assert (await response.json())["batch_size"] == 8
    async with child.post(gateway.inference + "/v1/completions", json={"prompt": "hi", "max_tokens": 1}) as response:
        assert response.headers["X-Clotho-Policy-Version"] == "3"
        assert (await response.json())["choices"][0]["text"] == "h" * 8
    assert inference.bodies == [{"prompt": "hi", "max_tokens": 1}]


async def test_a_registered_child_that_falls_silent_is_unhealthy(gateway, child):
    gateway._last_activity -= 1000
    assert gateway.unhealthy() is None, "loading data before it registers may take long"
    await register(child, gateway)
    assert gateway.unhealthy() is None
    gateway._last_activity -= 1000
    assert gateway.unhealthy() == "no request from the environment for 1000 s"


DEEP = b"[" * 100_000


async def test_deep_json_from_the_child_is_refused_by_the_server_and_survived(gateway, child, api_server):
    await register(child, gateway)
    api_server.refusal = "nested too deeply"
    for body in (DEEP, b'{"masks": [[1]], "scores": [1], "messages": ' + DEEP, b'{"a":' * 100_000):
        async with child.post(gateway.api_server + "/scored_data", data=body) as response:
            assert response.status == 422
    api_server.refusal = ""
    assert gateway.groups_refused == 3
    assert await send(child, gateway, group_of([5])) == 200
    assert gateway.groups_refused == 0


async def test_unreadable_answers_of_the_api_server_are_survived(gateway, child, api_server):
    for body in (DEEP, b"", b"{}", b'{"env_id": "one"}'):
        api_server.troubles.append(web.Response(body=body))
        async with child.post(gateway.api_server + "/register-env", json=REGISTRATION) as response:
            assert response.status == 200
        assert not gateway.is_registered
    await register(child, gateway)
    api_server.status_body = DEEP
    assert await gateway.current_step() is None
