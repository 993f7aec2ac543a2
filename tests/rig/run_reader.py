"""Reads TrainingRuns in this process: a wait asks several times a second, and each kubectl costs 0.15 s of CPU."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from clotho.cluster.kubeconfig import from_kubeconfig
from clotho_dev.cluster.kubectl import Kubectl


def read_run(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """From the cluster and namespace that kubectl is bound to."""
    server, opener = _way_to(kubectl.kubeconfig)
    path = f"/apis/clotho.dev/v1alpha1/namespaces/{kubectl.namespace}/trainingruns/{name}"
    with opener.open(server + path, timeout=60) as answer:
        run: dict[str, Any] = json.load(answer)
    return run


@cache
def _way_to(kubeconfig: Path) -> tuple[str, OpenerDirector]:
    credentials = from_kubeconfig(kubeconfig)
    return credentials.server, build_opener(ProxyHandler({}), HTTPSHandler(context=credentials.tls))
