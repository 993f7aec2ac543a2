"""llama.cpp itself, in an environment of its own under the cache: what it makes of a file that we wrote."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGE = "xllamacpp==2026.10.11549"  # llama.cpp's server as a wheel: nothing has to be compiled
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "clotho" / PACKAGE.replace("==", "-")


class UnavailableError(Exception):
    """The package could not be installed on this machine."""


def interpreter() -> Path:
    """Made on first use and kept."""
    python = CACHE / "bin" / "python"
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{CACHE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "complete").exists():
            shutil.rmtree(CACHE, ignore_errors=True)
            _install(python)
            (CACHE / "complete").touch()
    return python


def _install(python: Path) -> None:
    install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", PACKAGE]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(CACHE)], check=True, capture_output=True)
        subprocess.run(install, check=True, capture_output=True, timeout=240)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        problem = (error.stderr or b"").decode()[-300:]
        raise UnavailableError(f"{PACKAGE} could not be installed: {problem}") from error


def ask(python: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each model: the tokens of its texts, and the log-probabilities of the token after each of its prompts."""
    answers = []
    for job in jobs:
        done = subprocess.run(
            [str(python), str(Path(__file__).with_name("llama_cpp_process.py"))],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env={"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
        )
        assert done.returncode == 0, f"{job['model']}: {done.stderr[-2000:]}"
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    return answers
