"""The command line on the cluster of the tests."""

from __future__ import annotations

import os
import subprocess
import sys

from clotho_dev import REPOSITORY
from e2e.product.runs import Runs


class Clotho:
    """The command line as people call it."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def __call__(self, *arguments: str, code: int = 0, is_in_cluster: bool = True) -> str:
        where = ["--namespace", str(self._runs.kubectl.namespace)] if is_in_cluster else []
        sources = [str(REPOSITORY / folder) for folder in ("operator", "images/contract")]
        done = subprocess.run(
            [sys.executable, "-m", "clotho.cli", *arguments, *where],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sources),
                "KUBECONFIG": str(self._runs.kubectl.kubeconfig),
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout
