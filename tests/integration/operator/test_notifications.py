"""Notifications against a real webhook: once for each transition, in the background, and without the URL in a log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from clotho.cluster.notifications import Notifier
from clotho.plan.model import Event
from rig.cluster_access import ClusterAccess, component, eventually
from rig.fake_kubelet import FakeKubelet
from rig.objects import a_run
from rig.operator_process import OperatorProcess

SECRET = "T000-B000-a-secret-path"
TRAINING = {"state": "training", "step": 1, "totalSteps": 100, "registered": True, "serving": True}
FINISHED = {"state": "finished", "step": 100, "totalSteps": 100, "checkpoint": {"step": 100, "path": "/ckpt/100"}}
StartOperator = Callable[..., Awaitable[OperatorProcess]]


class Hook:
    def __init__(self) -> None:
        self.received: list[dict[str, str]] = []
        self.status = 200
        self.hold = asyncio.Event()
        self.hold.set()
        self.url = ""

    def texts(self) -> list[str]:
        return [each["text"] for each in self.received]

    async def handle(self, request: web.Request) -> web.Response:
        await self.hold.wait()
        self.received.append(await request.json())
        return web.Response(status=self.status, headers={"Location": "/elsewhere"})


@pytest_asyncio.fixture
async def hook() -> AsyncIterator[Hook]:
    served = Hook()
    app = web.Application()
    app.router.add_post("/{path:.*}", served.handle)
    server = web.AppRunner(app, access_log=None)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    host, port = server.addresses[0][:2]
    served.url = f"http://{host}:{port}/{SECRET}"
    yield served
    served.hold.set()
    await server.cleanup()


def event(reason: str) -> Event:
    return Event(type="Warning", reason=reason, message="The trainer is gone.")


def notifier(folder: Path, url: str, outcomes: list[str]) -> Notifier:
    file = folder / "url"
    file.write_text(f"{url}\n")
    return Notifier(str(file), outcomes.append)


async def test_ends_and_stalls_are_sent_as_slack_reads_them(hook: Hook, tmp_path: Path) -> None:
    outcomes: list[str] = []
    sender = notifier(tmp_path, hook.url, outcomes)
    for reason in ("Starting", "Running", "Failed", "Restarting", "Stalled", "Completed"):
        sender.announce(a_run(), event(reason))
    await sender.drain(10)
    assert sorted(hook.texts()) == [
        "Training run ns/r completed: The trainer is gone.",
        "Training run ns/r failed: The trainer is gone.",
        "Training run ns/r stalled: The trainer is gone.",
    ]
    assert outcomes == ["sent"] * 3


async def test_the_operator_announces_each_stall_and_end_once(
    cluster: ClusterAccess, kubelet: FakeKubelet, start_operator: StartOperator, hook: Hook, tmp_path: Path
) -> None:
    file = tmp_path / "url"
    file.write_text(hook.url)
    operator = await start_operator(CLOTHO_NOTIFICATIONS_URL_FILE=str(file))
    await cluster.create_run("learns", stall={"afterSeconds": 2, "action": "Report"})
    await cluster.until("stalled", lambda run: "stall" in run["status"], "learns")
    kubelet.progress = FINISHED
    await cluster.until_phase("Completed", "learns")

    kubelet.progress = TRAINING
    await cluster.create_run("breaks")
    await cluster.until_phase("Running", "breaks")
    trainer = next(pod for pod in await cluster.pods("breaks") if component(pod) == "trainer")
    await kubelet.fail(trainer, message='{"reason": "InvalidConfig", "message": "no such model: Qwen/Qwen9"}')
    await cluster.until_phase("Failed", "breaks")

    async def received() -> tuple[bool, list[str]]:
        return len(hook.received) >= 3, hook.texts()

    stalled, completed, failed = await eventually("announced", received)
    run = f"Training run {cluster.namespace}"
    assert stalled.startswith(f"{run}/learns stalled: No step since 20")
    assert completed.startswith(f"{run}/learns completed: Completed all 100 steps")
    assert failed.startswith(f"{run}/breaks failed: ")
    assert "no such model: Qwen/Qwen9" in failed
    assert await operator.metric('clotho_notifications_total{outcome="sent"}') == 3


async def test_no_caller_waits_for_a_webhook_that_hangs(hook: Hook, tmp_path: Path) -> None:
    hook.hold.clear()
    outcomes: list[str] = []
    sender = notifier(tmp_path, hook.url, outcomes)
    for _ in range(150):
        sender.announce(a_run(), event("Failed"))
    assert outcomes == ["failed"] * 50, "beyond 100 in flight"
    hook.hold.set()
    await sender.drain(30)
    assert outcomes.count("sent") == 100


@pytest.mark.parametrize("status", [302, 404, 500, None])
async def test_a_failure_is_counted_and_the_url_is_in_no_log(
    hook: Hook, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int | None
) -> None:
    caplog.set_level(logging.DEBUG)
    outcomes: list[str] = []
    hook.status = status or 200
    url = hook.url if status else f"http://127.0.0.1:1/{SECRET}"
    sender = notifier(tmp_path, url, outcomes)
    sender.announce(a_run(), event("Failed"))
    await sender.drain(10)
    assert outcomes == ["failed"]
    assert len(hook.received) == (1 if status else 0), "one attempt, and no redirect is followed"
    assert "notification not sent" in caplog.text
    assert SECRET not in caplog.text
