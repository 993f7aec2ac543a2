"""`clotho` as a process of its own, as people and scripts run it."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from clotho_dev.cluster.process import die_with_parent

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "images/contract"))
LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def data(self) -> object:
        return msgspec.json.decode(self.out)


@dataclass(frozen=True)
class Clotho:
    """One kubeconfig, one namespace."""

    kubeconfig: Path
    namespace: str

    def argv(self, *words: str) -> list[str]:
        where = [] if words[:2] == ("env", "discover") else ["--namespace", self.namespace]
        return [sys.executable, "-m", "clotho.cli", *words, *where]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": SOURCES, "KUBECONFIG": str(self.kubeconfig)}

    async def __call__(self, *words: str, stdin: str = "") -> Outcome:
        process = await asyncio.create_subprocess_exec(
            *self.argv(*words),
            env=self.environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        async with asyncio.timeout(LIMIT_SECONDS):
            out, err = await process.communicate(stdin.encode())
        outcome = Outcome(process.returncode or 0, out.decode(), err.decode())
        assert "Traceback" not in outcome.err, outcome.err
        return outcome
