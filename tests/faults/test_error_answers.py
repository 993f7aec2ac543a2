"""Every write of a run's life is answered once with each error, or loses its connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from faults.campaign import Case, Recording, life_with
from faults.fault import Effect, Fault, Refuse, Reset, ResetWatches, Slow, Unauthorized
from faults.proxy import Moment

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3600)]
ERRORS: tuple[tuple[Effect, Moment], ...] = (
    (Refuse(409, "Conflict"), Moment.BEFORE),
    (Refuse(429, "TooManyRequests", retry_after=1), Moment.BEFORE),
    (Refuse(500, "InternalError"), Moment.BEFORE),
    (Refuse(504, "Timeout"), Moment.COMMITTED),
    (Reset(), Moment.BEFORE),
    (Reset(), Moment.COMMITTED),
    (ResetWatches(), Moment.ANSWERED),
)


def cases(reference: Recording) -> list[Case]:
    at_writes = [
        life_with(partial(Fault, effect, write, moment), reference)
        for write in reference.names
        for effect, moment in ERRORS
    ]
    return [life_with(Slow, reference), life_with(Unauthorized, reference), *at_writes]


async def test_error_answers(reference: Recording, run_campaign: Callable) -> None:
    every = cases(reference)
    await run_campaign("error_answers", every, [*every[:2], *every[2::16]])
