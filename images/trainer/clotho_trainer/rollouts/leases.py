"""Groups of the run's environments, leased from the API server and acknowledged once they are trained."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from clotho_contract.config import RunConfig
from clotho_contract.history import Evaluation
from clotho_contract.progress import State
from clotho_contract.trajectory import ScoredGroup
from clotho_trainer.failures import TrainerError
from clotho_trainer.rollouts.api_server import (
    ApiServer,
    Lease,
    LeaseLostError,
    OutdatedServerError,
    UnregisteredError,
)
from clotho_trainer.training import groups
from clotho_trainer.training.backend import Backend
from clotho_trainer.training.source import Reading

log = logging.getLogger(__name__)


class LeaseSource:
    opening = "the API server to take the registration"
    activity: State = "waiting"
    last_step: int | None = None

    def __init__(self, api: ApiServer, config: RunConfig, checkpoints: str) -> None:
        self._api = api
        self._config = config
        self._checkpoints = checkpoints
        self._unacknowledged: set[bytes] = set()  # trained batches whose lease was lost: never train them twice
        self._names: dict[int, str] = {}
        self._has_evaluations = True
        self._confirmed = 0  # the last step that the server knows of

    async def prepare(self) -> None:
        await self._api.wait_until_up()

    async def open(self, backend: Backend, state: dict[str, Any]) -> None:
        await self._register(backend.version)
        if backend.version:
            await self._api.checkpointed(backend.version)

    async def take(self, stop: asyncio.Event, step: int) -> "LeasedBatch | None":
        try:
            lease = await self._next_lease(stop)
        except UnregisteredError as error:
            log.warning("the API server lost its state, so the trainer registers again at step %d: %s", step, error)
            await self._register(step)
            return None
        if lease is None:
            return None
        if lease.step is not None and lease.step < self._confirmed:  # its batches may have been trained already
            await self._discard_server_state(step, f"it is at step {lease.step}")
            return None
        if self._unacknowledged and lease.digest() in self._unacknowledged:
            await self.acknowledge(lease, step)
            return None
        return LeasedBatch(self, self._api, lease)

    async def environment_names(self, ids: Collection[int]) -> Mapping[int, str]:
        """They register one by one, and anew after a restart."""
        if not self._names.keys() >= set(ids):
            try:
                connected = (await self._api.status()).environments
            except (TrainerError, msgspec.MsgspecError) as error:  # samples go without a name
                log.warning("the names of the environments are not known: %s", error)
                connected = ()
            self._names |= dict.fromkeys(ids, "") | {each.id: each.name for each in connected}
        return self._names

    async def evaluations(self) -> Sequence[Evaluation]:
        if not self._has_evaluations:
            return ()
        try:
            return await self._api.evaluations()
        except (TrainerError, msgspec.MsgspecError) as error:
            log.warning("evaluations are not known: %s", error)
            self._has_evaluations = False  # an older server
            return ()

    async def checkpointed(self, step: int) -> None:
        await self._api.checkpointed(step)

    async def reconfigured(self, config: RunConfig, step: int) -> None:
        self._config = config
        await self._register(step)

    def state(self) -> dict[str, Any]:
        """Empty: the API server keeps a record of what was trained."""
        return {}

    async def acknowledge(self, lease: Lease, step: int) -> None:
        try:
            await self._api.acknowledge(lease.lease_id, step)
            if self._unacknowledged:
                self._unacknowledged.discard(lease.digest())
            self._confirmed = step
        except LeaseLostError as error:
            log.warning("the lease was lost before step %d was acknowledged: %s", step, error)
            self._unacknowledged.add(lease.digest())
        except OutdatedServerError as error:
            await self._discard_server_state(step, str(error))

    async def _register(self, step: int) -> None:
        try:
            await self._api.register(self._config, self._checkpoints, step)
        except OutdatedServerError as error:
            await self._discard_server_state(step, str(error))
        self._confirmed = step

    async def _discard_server_state(self, step: int, reason: str) -> None:
        log.warning(
            "the API server's state is older than the policy of step %d (%s): queued groups are discarded, "
            "the trainer registers again and training continues",
            step,
            reason,
        )
        await self._api.register(self._config, self._checkpoints, step, discards_state=True)
        self._confirmed = step

    async def _next_lease(self, stop: asyncio.Event) -> Lease | None:
        leasing = asyncio.create_task(self._api.lease())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({leasing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not leasing.done():
                return None
            lease = leasing.result()
            if lease is not None and stop.is_set():
                await self._api.release(lease.lease_id)
                return None
            return lease
        finally:
            leasing.cancel()
            stopping.cancel()


class LeasedBatch:
    def __init__(self, source: LeaseSource, api: ApiServer, lease: Lease) -> None:
        self._source = source
        self._api = api
        self._lease = lease

    def read(self, vocabulary: int) -> Reading:
        sound: list[ScoredGroup] = []
        rejected: list[str] = []
        for raw in self._lease.batch:
            try:
                sound.append(groups.decode(raw, vocabulary))
            except groups.InvalidGroupError as error:
                rejected.append(str(error))
        return Reading(sound, rejected)

    def held(self) -> AbstractAsyncContextManager[None]:
        return self._api.renewed(self._lease)

    def figures(self, found: Mapping[str, float]) -> Mapping[str, float]:
        return {}

    @property
    def ends_epoch(self) -> bool:
        """Environments decide themselves what a pass over their data is."""
        return False

    async def trained(self, step: int, figures: Mapping[str, float]) -> None:
        await self._source.acknowledge(self._lease, step)
