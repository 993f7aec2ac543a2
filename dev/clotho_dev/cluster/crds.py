"""CRDs of other projects in a cluster of ours, for tests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from clotho_dev.cluster.failure import ClusterError
from clotho_dev.cluster.kubectl import Kubectl, KubectlError

SERVED_SECONDS = 60.0


def install(kubectl: Kubectl, files: Sequence[Path]) -> None:
    """Until each kind can be listed: a CRD that is established refuses requests for another moment."""
    kubectl.run("apply", "--server-side", *_arguments(files))
    found = kubectl.get(*_arguments(files))
    deadline = time.monotonic() + SERVED_SECONDS
    for crd in found.get("items", [found]):
        spec = crd["spec"]
        version = next(each["name"] for each in spec["versions"] if each["storage"])
        while not _is_served(kubectl, f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"):
            if time.monotonic() > deadline:
                name = crd["metadata"]["name"]
                raise ClusterError(f"the API server did not serve {name} in {SERVED_SECONDS:.0f} s")
            time.sleep(0.1)


def remove(kubectl: Kubectl, files: Sequence[Path]) -> None:
    kubectl.run("delete", *_arguments(files), "--wait")


def _arguments(files: Sequence[Path]) -> list[str]:
    return [f"--filename={file}" for file in files]


def _is_served(kubectl: Kubectl, path: str) -> bool:
    try:
        kubectl.run("get", "--raw", path)
    except KubectlError:
        return False
    return True
