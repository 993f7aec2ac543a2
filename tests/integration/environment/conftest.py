"""Stand-ins for the two servers that an environment talks to, on loopback."""

import pytest

from integration.environment.stand_ins import ApiServerStandIn, InferenceStandIn, started


@pytest.fixture
async def inference():
    stand_in = InferenceStandIn()
    async with started(stand_in):
        yield stand_in


@pytest.fixture
async def api_server():
    stand_in = ApiServerStandIn()
    async with started(stand_in):
        yield stand_in
