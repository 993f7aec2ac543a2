"""The operator as a process of its own, so that it can be killed like one."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp

from clotho_dev.cluster.process import die_with_parent

ROOT = Path(__file__).parents[2]
FAST = {
    "CLOTHO_LEASE_DURATION_SECONDS": "4",
    "CLOTHO_LEASE_RENEW_WITHIN_SECONDS": "2",
    "CLOTHO_LEASE_RENEW_EVERY_SECONDS": "0.5",
    "CLOTHO_LEASE_ASK_EVERY_SECONDS": "0.1",
    "CLOTHO_API_TIMEOUT_SECONDS": "2",
    "CLOTHO_PROBE_INTERVAL_SECONDS": "0.3",
    "CLOTHO_PROBE_STARTUP_SECONDS": "0.2",
    "CLOTHO_RECONCILE_PROGRESS_SECONDS": "1",
    "CLOTHO_RECONCILE_SETTLE_SECONDS": "0.05",
    "CLOTHO_RECONCILE_PLACEMENT_SECONDS": "3",
    "CLOTHO_RECONCILE_RETRY_LIMIT_SECONDS": "1",
}


class OperatorProcess:
    """Used as an async context manager; its log is a file that a failing test shows."""

    def __init__(self, kubeconfig: Path, log: Path, settings: dict[str, str]) -> None:
        self._kubeconfig, self._log = kubeconfig, log
        self._settings = {**settings, "CLOTHO_SERVER_HOST": "127.0.0.1", "CLOTHO_SERVER_PORT": "0"}
        self._process: asyncio.subprocess.Process | None = None
        self.has_failed = False  # as its test expected

    async def start(self) -> "OperatorProcess":
        path = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "images/contract"))
        environment = {
            **os.environ,
            **self._settings,
            "PYTHONPATH": path,
            "CLOTHO_API_KUBECONFIG": str(self._kubeconfig),
        }
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "clotho.manager",
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        return self

    async def __aenter__(self) -> "OperatorProcess":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        if self.is_alive:
            await self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """SIGKILL: no orderly shutdown."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        return await self._end(signal.SIGTERM)

    async def wait(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None
        self.has_failed = True
        return await asyncio.wait_for(self._process.wait(), 60)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), 30)

    def log(self) -> str:
        return self._log.read_text()

    async def address(self) -> str:
        """Where it serves health and metrics, from its log."""
        async with asyncio.timeout(30):
            while "serving health" not in self.log():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
        text = self.log().rpartition("serving health")[2]
        return f"http://127.0.0.1:{text.partition('127.0.0.1')[2].split(',')[1].split(')')[0].strip()}"

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(await self.address() + path) as answer:
            return answer.status, await answer.text()

    async def metric(self, line_start: str) -> float:
        _, text = await self.get("/metrics")
        values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(line_start)]
        return sum(values)


def has_traceback(log: str) -> bool:
    return "Traceback" in log or '"exception"' in log
