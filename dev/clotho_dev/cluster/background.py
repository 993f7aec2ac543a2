"""Images are built and imported by a process of their own while Go compiles: it mostly waits for network and disk."""

from __future__ import annotations

import subprocess
import sys
import time

from clotho_dev.cluster.binaries import cache_folder
from clotho_dev.cluster.console import step
from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.process import die_with_parent

POLL_SECONDS = 0.5


class BackgroundBuild:
    """`python -m clotho_dev.cluster build`, with its output in a file."""

    def __init__(self) -> None:
        self.log = cache_folder() / "image-build.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clotho_dev.cluster", "build"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - started from the main thread only
            )

    def wait(self) -> None:
        if self.process.poll() is None:
            with step("Building images") as progress:
                while self.process.poll() is None:
                    progress.update(self._last_line())
                    time.sleep(POLL_SECONDS)
        if self.process.returncode != 0:
            raise ClusterError(f"the images could not be built: {self._last_line()}; the whole output is in {self.log}")

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "starting"
