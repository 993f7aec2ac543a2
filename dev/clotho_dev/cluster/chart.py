"""Installs the chart as a user would, with the images that were built here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clotho_dev import REPOSITORY
from clotho_dev.cluster import binaries
from clotho_dev.cluster.console import step
from clotho_dev.cluster.failure import ClusterError

RELEASE = "clotho"
NAMESPACE = "clotho-system"
IMAGE_KEYS = {"operator": "operator", "api-server": "apiServer", "trainer": "trainer", "environment": "environment"}


def install(
    kubeconfig: Path,
    images: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
    runs: Mapping[str, Any] | None = None,
) -> None:
    """`settings` and `runs`: values of the chart under those names."""
    helm = binaries.find(["helm"])["helm"]
    named = {IMAGE_KEYS[name]: tag for name, tag in images.items()}
    values = {"images": named, "settings": dict(settings or {}), "runs": dict(runs or {})}
    argv = [str(helm), "upgrade", "--install", RELEASE, str(REPOSITORY / "charts" / "clotho"), "--values=-"]
    argv += [f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", "--create-namespace", "--wait", "--timeout=180s"]
    with step("Installing the chart"):
        done = subprocess.run(argv, input=json.dumps(values), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"helm could not install the chart: {done.stderr.strip()}")
