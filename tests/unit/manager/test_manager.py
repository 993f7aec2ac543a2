"""The operator as a whole, without a cluster: what changes when this replica leads no more, and when it leads again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

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
from rig.objects import UID, pod_body, run_body

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
async def idle_manager(at_stop: Callable[[], None] = lambda: None) -> AsyncIterator[Manager]:
    credentials = Credentials("http://nowhere", None, lambda: None)
    async with ApiClient(credentials) as client:
        yield Manager(Settings(), credentials, client, Metrics(CollectorRegistry()), at_stop)


@asynccontextmanager
async def probing() -> AsyncIterator[Manager]:
    """A manager that knows of one run with a trainer; of its parts only the probes are at work."""
    async with idle_manager() as manager:
        manager.store.handle_event("TrainingRun", False, run_body(status={"phase": "Starting"}))
        manager.store.handle_event("Pod", False, pod_body("trainer"))
        task = asyncio.create_task(manager.probes.run())
        yield manager
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_probes_are_discarded_and_repeated_when_leadership_is_regained(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    monkeypatch.setattr(probe, "http_get", trainer)
    async with probing() as manager:
        manager._leadership_changed(True)
        manager.probes.add(RUN)
        await trainer.until_asked(1)
        manager.probes.add(RUN)
        await trainer.until_asked(2)
        assert manager.answers.of(RUN, UID).trainer
        manager._leadership_changed(False)
        assert manager.answers.of(RUN, UID).trainer is None, "another replica has gone on with the run"
        manager._leadership_changed(True)
        await trainer.until_asked(3)


async def fails() -> None:
    raise ValueError("a defect")


async def returns() -> None:
    return


async def is_cancelled() -> None:
    raise asyncio.CancelledError


async def lasts() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("end", [fails, returns, is_cancelled])
@pytest.mark.parametrize(
    ("name", "owner", "method"),
    [
        ("watches", "watching", "run"),
        ("watches of children", "children", "run"),
        ("leader election", "", "_lead"),
        ("reconcile queue", "reconciles", "run"),
        ("probe queue", "probes", "run"),
        ("resync", "", "_resync"),
        ("relist check", "", "_compare_after_relists"),
    ],
)
async def test_probes_are_red_and_the_operator_fails_once_a_background_task_has_exited(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: str, method: str, end: Callable[[], Awaitable[None]]
) -> None:
    answers: list[str | None] = []
    async with idle_manager(at_stop=lambda: answers.extend((manager.healthy(), manager.ready()))) as manager:
        manager.sync.is_synced = True
        monkeypatch.setattr(manager.watching, "run", lasts)
        monkeypatch.setattr(manager.children, "run", lasts)
        monkeypatch.setattr(getattr(manager, owner) if owner else manager, method, end)
        assert manager.healthy() is None
        with pytest.raises((ValueError, RuntimeError), match="a defect" if end is fails else name):
            await manager._work_until(asyncio.Event())
        assert answers == [f"background task exited: {name}"] * 2


async def test_probes_stay_green_during_a_regular_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str | None] = []
    async with idle_manager(at_stop=lambda: answers.extend((manager.healthy(), manager.ready()))) as manager:
        manager.sync.is_synced = True
        monkeypatch.setattr(manager.watching, "run", lasts)
        monkeypatch.setattr(manager.children, "run", lasts)
        stop = asyncio.Event()
        stop.set()
        await manager._work_until(stop)
        assert answers == [None, None]


async def test_runs_removed_under_another_leader_keep_their_claims() -> None:
    async with idle_manager() as manager:
        manager.store.handle_event("TrainingRun", False, run_body())
        manager.store.handle_event("TrainingRun", True, run_body(2))
        assert RUN in manager.store.removed_runs
        manager._leadership_changed(True)
        assert manager.store.removed_runs == {}


def ready(component: str) -> dict[str, Any]:
    pod = pod_body(component)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return pod


@pytest.mark.parametrize(
    ("status", "pods", "overtakes"),
    [
        ({}, [], False),
        ({}, [ready("api-server"), pod_body("trainer", phase="Pending")], False),
        ({}, [ready("api-server"), ready("trainer")], True),
        ({}, [ready("api-server"), pod_body("trainer", phase="Failed")], True),
        ({"observedGeneration": 1}, [pod_body("trainer", phase="Pending")], True),
    ],
    ids=["without pods", "starting", "all pods ready", "a pod failed", "with a status"],
)
async def test_a_change_overtakes_new_runs_once_there_is_something_to_say(status, pods, overtakes) -> None:
    async with idle_manager() as manager:
        new = run_body()
        new["metadata"] |= {"name": "new", "uid": "uid-new"}
        manager.store.handle_event("TrainingRun", False, new)
        for pod in pods:
            manager.store.take_in("Pod", pod)
        manager.store.handle_event("TrainingRun", False, run_body(status=status))
        first = manager.reconciles.queue.pop(time.monotonic())
        assert first == (RUN if overtakes else Key("ns", "new"))
