"""The tinker backend against a real Tinker-compatible server (SkyRL on JAX, on the CPU) in a process of its own.

The server needs Python 3.12 and packages that do not belong into ours: they live in an environment under the cache.
"""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clotho_dev.ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "clotho" / "tinker-skyrl-0.3.0"
EVERY_PROGRAM = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # is kept: compiling takes most of the test's time
PACKAGES = ["skyrl[tinker,jax]==0.3.0", "tinker<=0.24.1", "aiohttp", "msgspec", "prometheus-client", "pyyaml"]

pytestmark = pytest.mark.timeout(2400)  # installed and compiled beside other tests, on machines that are busy


@pytest.fixture(scope="module")
def interpreter() -> Path:
    """Made on first use and kept; skipped loudly where it cannot be made."""
    python = CACHE / "bin" / "python"
    if (CACHE / "complete").exists():
        return python
    base = _python312()
    if base is None:
        pytest.skip("the Tinker-compatible server needs Python 3.12 or newer, and there is none")
    shutil.rmtree(CACHE, ignore_errors=True)
    try:
        subprocess.run([base, "-m", "venv", str(CACHE)], check=True, capture_output=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the Tinker-compatible server could not be installed: {error.stderr.decode()[-300:]}")
    (CACHE / "complete").touch()
    return python


def _python312() -> str | None:
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[2-9]*/bin/python3"))
    candidates = [shutil.which("python3.12"), shutil.which("python3.13"), *map(str, pyenv)]
    for candidate in candidates:
        check = "import sys, ensurepip; sys.exit(sys.version_info < (3, 12))"
        if candidate and subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.fixture
def service(interpreter: Path, model: Path, tmp_path: Path) -> Iterator[str]:
    """The server's address, once its engine has the model."""
    port = free_port()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text(f'#!/bin/sh\nexec {interpreter} {HERE / "uv_stand_in.py"} "$@"\n')
    (tools / "uv").chmod(0o755)
    command = [str(interpreter), str(HERE / "uv_stand_in.py"), "-m", "skyrl.tinker.api"]
    settings = {
        "--base-model": str(model),
        "--backend": "jax",
        "--backend-config": json.dumps({"max_lora_adapters": 4, "max_lora_rank": 8}),
        "--checkpoints-base": str(tmp_path / "weights"),
        "--database-url": f"sqlite:///{tmp_path / 'tinker.db'}",
        "--host": "127.0.0.1",
        "--port": str(port),
    }
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(CACHE / "compiled"), **EVERY_PROGRAM}
    environment.pop("PYTHONPATH", None)
    with (tmp_path / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *(part for pair in settings.items() for part in pair)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _wait_until_up(f"http://127.0.0.1:{port}/api/v1/healthz", process, tmp_path / "service.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - loopback
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError(f"the Tinker-compatible server did not start:\n{log.read_text()[-3000:]}")


def train(interpreter: Path, service: str, model: Path, folder: Path, steps: int) -> dict[str, Any]:
    """In the other environment, because this one has no Tinker SDK."""
    sources = [ROOT / "images" / "contract", ROOT / "images" / "trainer", ROOT / "tests"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "CLOTHO_TOKEN": "the-run's-token",
        "CLOTHO_DATA": str(folder / "data"),
        "TINKER_API_KEY": "tml-for-tests",
        "TINKER_BASE_URL": service,
        "TINKER_TELEMETRY": "0",
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(interpreter), str(HERE / "tinker_run.py"), str(model), str(folder), str(steps)]
    done = subprocess.run(
        [*command, str(free_port()), str(free_port())], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert result["reason"] == "Finished", (result, done.stdout[-3000:])
    return result


def test_the_same_loop_trains_on_a_tinker_service(interpreter: Path, service: str, model: Path, tmp_path: Path) -> None:
    first = train(interpreter, service, model, tmp_path, steps=4)
    assert first["acknowledged"] == [1, 2, 3, 4]
    assert first["versions"][:4] == [0, 1, 2, 3], "every batch was sampled by the newest weights"
    resumed = train(interpreter, service, model, tmp_path, steps=25)
    assert resumed["registered_at"] == [4], "from the state that the service kept"
    assert resumed["acknowledged"] == list(range(5, 26))
    rewards = first["rewards"] + resumed["rewards"]
    print({"first_five": sum(rewards[:5]) / 5, "last_five": sum(rewards[-5:]) / 5})
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.5, "the policy on the service learns"
