"""A replica reports its load to the trainer, which has to know how full all engines of the run are."""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

import aiohttp
import msgspec

from clotho_contract.policy_updates import LOAD_PATH, LOAD_SECONDS, REPLICA, Load

log = logging.getLogger(__name__)

_REPORT = aiohttp.ClientTimeout(total=LOAD_SECONDS)


async def report_load(
    session: aiohttp.ClientSession, trainer: str, replica: str, load: Callable[[], Load | None]
) -> NoReturn:
    """`load` is None while the replica does not serve. A report that is lost is replaced by the next."""
    url, params = trainer.rstrip("/") + LOAD_PATH, {REPLICA: replica}
    while True:
        if (current := load()) is not None:
            try:
                async with session.post(url, params=params, data=msgspec.json.encode(current), timeout=_REPORT):
                    pass
            except (aiohttp.ClientError, TimeoutError) as error:
                log.debug("the trainer did not take the load: %s", error)
        await asyncio.sleep(LOAD_SECONDS)
