"""A namespace for one test: empty, enforcing `restricted` Pod Security, gone afterwards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from clotho_dev.cluster.kubectl import Kubectl, KubectlError


@contextmanager
def fresh_namespace(kubectl: Kubectl, name: str = "") -> Iterator[str]:
    name = name or f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    deadline = time.monotonic() + 30
    while not exists(kubectl.in_namespace(name), "serviceaccount/default"):
        assert time.monotonic() < deadline, "the controller manager made no default service account"
        time.sleep(0.05)
    try:
        yield name
    finally:
        kubectl.run("delete", "namespace", name, "--wait=false")


def exists(kubectl: Kubectl, name: str) -> bool:
    try:
        kubectl.get(name)
    except KubectlError:
        return False
    return True
