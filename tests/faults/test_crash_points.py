"""The operator is killed at every write of a run's life: before it, after its commit, after its answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from faults.campaign import Case, Recording, life_with
from faults.fault import Fault, Kill
from faults.proxy import Moment

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3600)]


def cases(reference: Recording) -> list[Case]:
    return [
        life_with(partial(Fault, Kill(), write, moment), reference) for write in reference.names for moment in Moment
    ]


async def test_crash_points(reference: Recording, run_campaign: Callable) -> None:
    every = cases(reference)
    await run_campaign("crash_points", every, every[::7])
