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
VARIANT_KEYS = {"environment-atropos": "environmentAtropos"}  # those whose digest an installation can name


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


def require_own(kubeconfig: Path, namespaces: list[str]) -> None:
    """Refuses a release that is not for these namespaces alone: an installation would replace its settings."""
    helm = binaries.find(["helm"])["helm"]
    argv = [str(helm), "get", "values", RELEASE, f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}"]
    done = subprocess.run([*argv, "--output=json"], capture_output=True, text=True, check=False)
    if done.returncode != 0 and "not found" in done.stderr:
        return
    if done.returncode != 0:
        raise ClusterError(f"helm could not look for the release {RELEASE}: {done.stderr.strip()}")
    values = json.loads(done.stdout) or {}
    if values.get("runs", {}).get("namespaces") != namespaces:
        raise ClusterError(
            f"Clotho is installed in this cluster already, as release {RELEASE} in {NAMESPACE}, whose settings would be"
            f" replaced: apply a run of examples/cpu-quickstart to it, or remove it first with"
            f" `helm uninstall {RELEASE} --namespace {NAMESPACE}`"
        )
