"""A policy on two ranks: requests are spread over both, and a rank that does not answer is done without."""

import aiohttp
import pytest
from aiohttp import web

from clotho_environment.atropos.gateway import Gateway
from clotho_environment.clients.connections import open_session
from clotho_environment.pod.telemetry import Telemetry
from clotho_environment.sdk.sampling import Defaults, SamplingClient
from integration.environment.stand_ins import TOKEN, InferenceStandIn, started

MESSAGES = [{"role": "user", "content": "ab"}]


@pytest.fixture
async def ranks():
    stand_ins = (InferenceStandIn(), InferenceStandIn())
    async with started(*stand_ins):
        yield stand_ins


@pytest.fixture
async def client(ranks):
    async with open_session(TOKEN) as session:
        urls = [rank.url for rank in ranks]
        yield SamplingClient(session, urls, model="tiny", defaults=Defaults(n=2, max_tokens=8), limit_seconds=5)


def asked(ranks) -> list[int]:
    return [len(rank.bodies) for rank in ranks]


async def test_requests_are_spread_and_conversations_stay(client, ranks):
    for _ in range(4):
        await client.chat(MESSAGES)
    assert asked(ranks) == [2, 2]
    conversation = client.conversation(MESSAGES)
    for _ in range(3):
        await conversation.reply()
    assert sorted(asked(ranks)) == [2, 5]


async def test_a_rank_that_is_not_ready_is_done_without(client, ranks):
    ranks[0].troubles = [web.json_response({"detail": "loading"}, status=503, headers={"Retry-After": "60"})]
    for _ in range(4):
        assert len(await client.chat(MESSAGES)) == 2
    assert asked(ranks) == [0, 4], "it is not asked again before its time"


async def test_the_gateway_spreads_requests_and_avoids_a_rank_that_is_gone(ranks):
    request = {"input_ids": [97], "sampling_params": {"n": 4}, "return_logprob": True}
    async with open_session(TOKEN) as session, aiohttp.ClientSession() as child:
        gateway = Gateway(session, Telemetry(), inference=[rank.url for rank in ranks], api_server="http://none")
        async with gateway.listening():

            async def sample() -> int:
                async with child.post(gateway.inference + "/generate", json=request) as response:
                    return response.status

            assert [await sample() for _ in range(4)] == [200] * 4
            assert asked(ranks) == [2, 2]
            await ranks[0].stop()
            assert [await sample() for _ in range(4)] == [200] * 4
            assert asked(ranks) == [2, 6]
