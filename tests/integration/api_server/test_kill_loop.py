"""200 times SIGKILL under load: every group that was answered `received` is trained exactly once, in order."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from clotho_dev.ports import free_port
from rig.trajectory_servers import SOURCES, ServerProcess, start_ours, write_config

KILLS = 200
ENVIRONMENTS = 3
TRAINER = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 8,
    "max_token_len": 0,
    "checkpoint_dir": "",
    "save_checkpoint_interval": 5,
    "starting_step": 0,
    "num_steps": 10**6,
}
GONE = (aiohttp.ClientError, ConnectionError, TimeoutError)


class Run:
    """What the clients know: which groups were answered, and which batches were acknowledged to them as trained."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session
        self.answered: set[int] = set()
        self.unanswered: set[int] = set()
        self.trained: list[int] = []
        self.step = 0
        self.finished = asyncio.Event()

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        async with self._session.post(self._url + path, json=body, headers=headers) as response:
            content = await response.read()
            return response.status, (await response.json() if content else None)

    async def post_until_answered(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        while True:
            try:
                return await self.post(path, body, headers)
            except GONE:
                await asyncio.sleep(0.005)

    async def produce(self, environment: int) -> None:
        """Numbers leave their environment in order, a short and a long row each."""
        for count in itertools.count():
            if self.finished.is_set():
                return
            number = count * ENVIRONMENTS + environment
            rows = [[number] * 50, [number] * 500]
            group = {"tokens": rows, "masks": rows, "scores": [1.0, 0.0]}
            await (self.send_once if environment == 0 else self.send_with_key)(number, group)

    async def send_once(self, number: int, group: Any) -> None:
        """One without an answer is not sent again: it may be there or not."""
        try:
            status, _ = await self.post("/scored_data", group)
            assert status in (200, 503)
            (self.answered if status == 200 else self.unanswered).add(number)
        except GONE:
            self.unanswered.add(number)
            await asyncio.sleep(0.005)

    async def send_with_key(self, number: int, group: Any) -> None:
        """One without an answer is sent again, though the server may have it."""
        key = {"Idempotency-Key": f"group {number}"}
        while True:
            status, answer = await self.post_until_answered("/scored_data", group, key)
            if status == 200:
                assert answer == {"status": "received"}
                self.answered.add(number)
                return
            assert status == 503

    async def train(self) -> None:
        """Leases, acknowledges until that is answered, and lets checkpoints follow now and then."""
        while not self.finished.is_set():
            if not await self.train_one_batch(wait_seconds=0.2):
                await asyncio.sleep(0.005)

    async def train_one_batch(self, wait_seconds: float) -> bool:
        try:
            status, lease = await self.post("/lease", {"wait_seconds": wait_seconds})
        except GONE:
            return False
        if status == 204:
            return False
        assert status == 200
        status, done = await self.post_until_answered(f"/lease/{lease['lease_id']}/ack", {"step": self.step + 1})
        assert (status, done) == (200, {"current_step": self.step + 1})
        self.step += 1
        self.trained += [group["tokens"][0][0] for group in lease["batch"]]
        if self.step % 5 == 0:
            await self.post_until_answered("/checkpointed", {"step": self.step - 2})
        return True


class Victim:
    """A server that starts in an instant, because its modules are loaded before it is forked."""

    def __init__(self, arguments: list[str]) -> None:
        self._forking = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "forking.py"), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._copy = 0

    def start(self) -> None:
        assert self._forking.stdin
        assert self._forking.stdout
        self._forking.stdin.write("\n")
        self._forking.stdin.flush()
        while not (line := self._forking.stdout.readline()).strip().isdigit():
            assert line, "the forking process has ended"  # other lines are logs
        self._copy = int(line)

    def kill(self) -> None:
        os.kill(self._copy, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._forking.kill()
        self._forking.communicate()


@asynccontextmanager
async def until_ready(url: str, session: aiohttp.ClientSession) -> AsyncIterator[None]:
    async with asyncio.timeout(60):
        while True:
            try:
                async with session.get(url + "/readyz"):
                    break
            except GONE:
                await asyncio.sleep(0.002)
    yield


@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_trained_twice(tmp_path: Path) -> None:
    port, moments = free_port(), random.Random(20)  # noqa: S311
    config = write_config(tmp_path / "run.yaml")
    options = ["--config", str(config), "--data", str(tmp_path / "data"), "--host", "127.0.0.1", "--port", str(port)]
    victim = Victim([*options, "--insecure-no-auth"])
    url = f"http://127.0.0.1:{port}"
    victim.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            run = Run(url, session)
            await run.post_until_answered("/register", TRAINER)
            clients = [asyncio.create_task(run.produce(n)) for n in range(ENVIRONMENTS)]
            clients.append(asyncio.create_task(run.train()))
            for _ in range(KILLS):
                async with until_ready(url, session):
                    await asyncio.sleep(moments.uniform(0, 0.1))
                victim.kill()
                victim.start()
            async with until_ready(url, session):
                run.finished.set()
            await asyncio.gather(*clients)
            while await run.train_one_batch(wait_seconds=0):
                pass
            _, left = await run.post("/register", {**TRAINER, "batch_size": 2, "starting_step": run.step})
            while await run.train_one_batch(wait_seconds=0):
                pass
            async with session.get(url + "/status") as response:
                status = await response.json()
    finally:
        victim.close()
    assert left
    assert status["current_step"] == run.step
    assert len(set(run.trained)) == len(run.trained)
    assert run.answered <= set(run.trained) <= run.answered | run.unanswered
    assert len(run.answered) > KILLS
    for environment in range(ENVIRONMENTS):
        own = [number for number in run.trained if number % ENVIRONMENTS == environment]
        assert own == sorted(own)


async def test_a_group_whose_answer_died_with_the_server_is_kept_once(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    script = [
        sys.executable,
        str(Path(__file__).parent / "dying.py"),
        "--config",
        str(write_config(tmp_path / "r.yaml")),
    ]
    options = ["--data", str(data), "--host", "127.0.0.1", "--port", str(port), "--insecure-no-auth"]
    server = ServerProcess([*script, *options], port, "/readyz", {"PYTHONPATH": os.pathsep.join(SOURCES)})
    row = [[5] * 50] * 2
    group, key = {"tokens": row, "masks": row, "scores": [1.0, 0.0]}, {"Idempotency-Key": "the same"}
    async with aiohttp.ClientSession() as session:
        run = Run(server.url, session)
        assert (await run.post("/register", {**TRAINER, "batch_size": 2}))[0] == 200
        with pytest.raises(GONE):
            await run.post("/scored_data", group, key)
        assert server.process.wait(timeout=60) == -signal.SIGKILL
        server = start_ours(data, port=port)
        try:
            assert await run.post("/scored_data", group, key) == (200, {"status": "received"})
            assert await run.train_one_batch(wait_seconds=0)
            assert not await run.train_one_batch(wait_seconds=0)
        finally:
            server.stop()
    assert run.trained == [5]
