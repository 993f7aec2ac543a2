"""`python -m clotho_environment ...` as the process it is in a pod."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from integration.environment.stand_ins import TOKEN

ROOT = Path(__file__).parents[3]
ENVIRONMENTS = Path(__file__).parent / "environments"
SOURCES = [ROOT / "images" / "contract", ROOT / "images" / "environment"]


@dataclass
class Command:
    process: asyncio.subprocess.Process
    folder: Path

    async def wait(self) -> int:
        async with asyncio.timeout(120):
            self.output, _ = await self.process.communicate()
        return self.process.returncode or 0

    def terminate(self) -> None:
        self.process.terminate()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def termination_message(self) -> dict[str, Any]:
        words: dict[str, Any] = json.loads((self.folder / "termination").read_text())
        return words


@asynccontextmanager
async def command(
    folder: Path, *arguments: str, variables: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> AsyncIterator[Command]:
    """Output goes to `.output`, standard error to the log; gone when the block ends."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("CLOTHO_", "OPENAI_"))}
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, [*SOURCES, ENVIRONMENTS])),
        "CLOTHO_TOKEN": TOKEN,
        "CLOTHO_CONFIG": str(folder / "run.yaml"),
        "CLOTHO_TERMINATION_MESSAGE": str(folder / "termination"),
    }
    with (folder / "log").open("wb") as log:
        serves = arguments[0] in ("serve", "wait")
        process = await asyncio.create_subprocess_exec(
            *(*prefix, sys.executable, "-m", "clotho_environment", *arguments),
            env=inherited | own | dict(variables or {}),
            stdout=log if serves else asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        yield Command(process, folder)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def write_run(folder: Path, *, api_server: str, inference: str, entry: str, steps: int = 5, **config: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "run": {"name": "test", "namespace": "default", "id": "test-1"},
                "endpoints": {"apiServer": api_server, "inference": inference},
                "model": {"name": "tiny"},
                "training": {"steps": steps, "batchSize": 8, "maxTokens": 64},
                "environments": [{"name": "env", "entry": entry, "config": config}],
            }
        )
    )
    return path
