"""The operator as a whole, without a cluster: what changes when this replica leads no more, and when it leads again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from clotho.cluster import probe
from clotho.cluster.cache import Key
from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials
from clotho.manager.manager import Manager
from clotho.manager.metrics import Metrics
from clotho.manager.settings import Settings
from clotho_contract.progress import Progress, encode
from rig.objects import pod_body, run_body

RUN = Key("ns", "r")


class Trainer:
    """Answers the first question and then hangs."""

    def __init__(self) -> None:
        self.asked = 0
        self.stirred = asyncio.Event()

    async def __call__(self, *_: object) -> bytes:
        self.asked += 1
        self.stirred.set()
        if self.asked > 1:
            await asyncio.Event().wait()
        return encode(Progress(state="training", step=3, total_steps=100))

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(10):
            while self.asked < times:
                self.stirred.clear()
                await self.stirred.wait()


@asynccontextmanager
async def probing() -> AsyncIterator[Manager]:
    """A manager that knows of one run with a trainer; of its parts only the probes are at work."""
    credentials = Credentials("http://nowhere", None, lambda: None)
    async with ApiClient(credentials) as client:
        manager = Manager(Settings(), credentials, client, Metrics(CollectorRegistry()))
        manager.store.handle_event("TrainingRun", False, run_body(status={"phase": "Starting"}))
        manager.store.handle_event("Pod", False, pod_body("trainer"))
        task = asyncio.create_task(manager.probes.run())
        yield manager
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_who_leads_again_asks_again_and_trusts_no_old_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    monkeypatch.setattr(probe, "http_get", trainer)
    async with probing() as manager:
        manager._leadership_changed(True)
        manager.probes.add(RUN)
        await trainer.until_asked(1)
        manager.probes.add(RUN)
        await trainer.until_asked(2)
        assert manager.prober.answers(RUN).trainer
        manager._leadership_changed(False)
        assert manager.prober.answers(RUN).trainer is None, "another replica has gone on with the run"
        manager._leadership_changed(True)
        await trainer.until_asked(3)
