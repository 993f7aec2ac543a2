"""Trajectory API servers as processes on free loopback ports: ours, and the one of atroposlib to compare with."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from clotho_dev.ports import free_port

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 240
SOURCES = [str(ROOT / "images" / "api-server"), str(ROOT / "images" / "contract")]


class ToolUnavailableError(Exception):
    """A foreign package could not be installed on this machine."""


class ServerProcess:
    """A server that answers before the constructor returns."""

    def __init__(self, command: Sequence[str], port: int, ready_path: str, environment: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        started = time.monotonic()
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait_until_ready(ready_path)
        self.seconds_to_ready = time.monotonic() - started

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=60)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _wait_until_ready(self, path: str) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode} before it answered")
            try:
                with urllib.request.urlopen(self.url + path, timeout=5):  # noqa: S310
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"{self.url}{path} did not answer within two minutes")


def start_ours(folder: Path, *options: str, token: str | None = None, port: int | None = None) -> ServerProcess:
    port = port or free_port()
    command = [sys.executable, "-m", "clotho_api_server", "--data", str(folder), "--host", "127.0.0.1"]
    access = ["--insecure-no-auth"] if token is None else []
    environment = {"PYTHONPATH": os.pathsep.join(SOURCES), "CLOTHO_TOKEN": token or "", "CLOTHO_CONFIG": ""}
    if "--config" not in options:
        environment["CLOTHO_CONFIG"] = str(write_config(folder.parent / f"{folder.name}.yaml"))
    return ServerProcess([*command, "--port", str(port), *access, *options], port, "/readyz", environment)


def start_atropos(python: Path) -> ServerProcess:
    port = free_port()
    command = [str(python), "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)]
    return ServerProcess(command, port, "/status", {"PYTHONPATH": ""})


def write_config(path: Path, *, max_queue_bytes: int = 8 * 1024**3, environment_timeout: int = 300) -> Path:
    path.write_text(
        f"""\
run: {{name: test, namespace: default, id: test-1}}
endpoints: {{apiServer: "http://127.0.0.1:8000", inference: "http://127.0.0.1:8001"}}
model: {{name: tiny}}
training: {{steps: 100}}
apiServer: {{maxQueueBytes: {max_queue_bytes}, environmentTimeoutSeconds: {environment_timeout}}}
"""
    )
    return path


def install_apart(name: str, version: str, *extras: str, variant: str = "") -> Path:
    """The Python of a virtual environment with this package in it, made once and kept in the cache folder.

    Callers with other extras need another variant.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clotho"
    folder = cache / "-".join(filter(None, [name, version, variant]))
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        wanted = " ".join([f"{name}=={version}", *extras])
        if not complete.exists() or complete.read_text() != wanted:
            _install(folder, wanted.split())
            complete.write_text(wanted)
    return folder / "bin" / "python"


def _install(folder: Path, packages: Sequence[str]) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    python = str(folder / "bin" / "python")
    if uv:
        steps = [
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", python, *packages],
        ]
    else:
        steps = [
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [python, "-m", "pip", "install", "--quiet", *packages],
        ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ToolUnavailableError(str(error)) from error
        if done.returncode:
            raise ToolUnavailableError(f"{' '.join(step)}: {done.stderr.strip()[-500:]}")


def atropos_python(*extras: str) -> Path:
    return install_apart("atroposlib", "0.4.0", "pytest", *extras, variant="with-extras" if extras else "")
