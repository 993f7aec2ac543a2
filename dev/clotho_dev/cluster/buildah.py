"""buildah with a store of its own in the cache."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clotho_dev.cluster import disk
from clotho_dev.cluster.binaries import cache_folder
from clotho_dev.cluster.console import Step
from clotho_dev.cluster.failure import ClusterError

SHOW_SECONDS = 0.5


def storage() -> Path:
    return cache_folder() / "buildah"


def discard_leftovers() -> None:
    """Of an interrupted build."""
    buildah("rm", "--all", check=False)


def argv_of(command: str, *arguments: str) -> list[str]:
    return [
        "buildah",
        f"--root={storage()}",
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


def follow(argv: list[str], progress: Step) -> tuple[int, list[str]]:
    """Shows the tool's newest line; the exit code and the end of its output."""
    process = subprocess.Popen(argv, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: list[str] = []
    try:
        with _repeating(lambda: progress.update(lines[-1] if lines else "starting")):
            for line in process.stdout or []:
                if line.strip():
                    lines[:] = [*lines[-30:], line.strip()]
        return process.wait(), lines
    except BaseException:
        process.kill()
        process.wait()
        raise


@contextmanager
def _repeating(show: Callable[[], None]) -> Iterator[None]:
    """Also while the tool prints nothing, as during the minutes in which it compresses a large layer."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(SHOW_SECONDS):
            show()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def stream(argv: list[str], progress: Step) -> None:
    code, lines = follow(argv, progress)
    if code == 0:
        return
    if disk.is_full(lines):
        raise ClusterError(disk.FULL)
    raise ClusterError(f"{Path(argv[0]).name} failed:\n" + "\n".join(f"  {text}" for text in lines[-12:]))
