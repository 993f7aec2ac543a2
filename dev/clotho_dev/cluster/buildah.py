"""buildah with a store of its own in the cache, and the scratch space of its builds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clotho_dev.cluster.binaries import cache_folder
from clotho_dev.cluster.console import Step
from clotho_dev.cluster.failure import ClusterError


@contextmanager
def scratch_space() -> Iterator[None]:
    """Removes what an interrupted build left, and afterwards what this one needed."""
    _discard_leftovers()
    scratch().mkdir(parents=True)
    try:
        yield
    finally:
        _discard_leftovers()


def _discard_leftovers() -> None:
    buildah("rm", "--all", check=False)
    shutil.rmtree(scratch(), ignore_errors=True)


def scratch() -> Path:
    """On the same disk as the rest of the cache: layers pass through it, and /tmp may be small."""
    return cache_folder() / "scratch"


def argv_of(command: str, *arguments: str) -> list[str]:
    storage = cache_folder() / "buildah"
    return [
        "buildah",
        f"--root={storage}",
        "--runroot=/run/clotho-buildah",
        "--storage-driver=overlay",
        command,
        *arguments,
    ]


def buildah(command: str, *arguments: str, check: bool = True) -> str:
    done = subprocess.run(argv_of(command, *arguments), capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ClusterError(f"buildah {command} failed: {done.stderr.strip()}")
    return done.stdout


def stream(argv: list[str], progress: Step) -> None:
    """Shows the tool's newest line; on failure, the end of its output."""
    process = subprocess.Popen(argv, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: list[str] = []
    try:
        for line in process.stdout or []:
            if line.strip():
                lines = [*lines[-30:], line.strip()]
                progress.update(lines[-1])
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code == 0:
        return
    if any("no space left on device" in text.lower() for text in lines):
        raise ClusterError("the disk is full; free some space and try again")
    raise ClusterError(f"{Path(argv[0]).name} failed:\n" + "\n".join(f"  {text}" for text in lines[-12:]))
