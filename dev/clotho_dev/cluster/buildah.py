"""buildah with a store of its own in the cache."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clotho_dev.cluster.binaries import cache_folder
from clotho_dev.cluster.console import Step
from clotho_dev.cluster.failure import ClusterError


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
