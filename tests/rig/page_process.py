"""The page's server as people start it: `clotho ui`, or as the chart does in the cluster."""

import asyncio
import base64
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml

from clotho_dev.cluster.process import die_with_parent
from rig.cluster_access import eventually
from rig.commands import SOURCES

LIMIT_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def clotho_ui(kubeconfig: Path, *options: str) -> AsyncIterator[str]:
    """The address that it prints, key included."""
    port = free_port()
    argv = ["-m", "clotho.cli", "ui", "--no-open", "--port", str(port), *options]
    async with _process(argv, {"KUBECONFIG": str(kubeconfig)}) as process:
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_SECONDS):
            line = (await process.stdout.readline()).decode()
        assert line.startswith(f"Open http://127.0.0.1:{port}/#key="), line
        yield line.removeprefix("Open ").strip()


@asynccontextmanager
async def page_in_cluster(kubeconfig: Path, folder: Path) -> AsyncIterator[str]:
    """Its address; the API server is found as in a pod, by its variables and the certificate of the authority."""
    known = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))["clusters"][0]["cluster"]
    host, _, api_port = known["server"].removeprefix("https://").rpartition(":")
    authority = folder / "ca.crt"
    await asyncio.to_thread(authority.write_bytes, base64.b64decode(known["certificate-authority-data"]))
    port = free_port()
    variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": api_port, "CLOTHO_WEB_CA": str(authority)}
    async with _process(["-m", "clotho.web"], {**variables, "CLOTHO_WEB_PORT": str(port)}):
        address = f"http://127.0.0.1:{port}/"
        async with aiohttp.ClientSession() as session:
            await eventually("a page that answers", lambda: _answers(session, f"{address}healthz"), LIMIT_SECONDS)
        yield address


async def _answers(session: aiohttp.ClientSession, address: str) -> tuple[bool, str]:
    try:
        async with session.get(address) as answer:
            return answer.status == 200, await answer.text()
    except aiohttp.ClientError as error:
        return False, str(error)


@asynccontextmanager
async def _process(argv: list[str], variables: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *argv,
        env={**os.environ, "PYTHONPATH": SOURCES, **variables},
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=die_with_parent,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
