"""CRDs that accept anything, as those of another version might: what admission usually refuses reaches the operator."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho_dev.cluster.kubectl import Kubectl

CRDS = Path(__file__).parents[3] / "crds"
ANYTHING_GOES = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@pytest.fixture
def lenient_crds(kubectl: Kubectl, crds: None) -> Iterator[None]:
    change = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": ANYTHING_GOES}]
    for plural in ("trainingruns", "environments"):
        kubectl.run("patch", "crd", f"{plural}.clotho.dev", "--type=json", f"--patch={json.dumps(change)}")
    yield
    kubectl.run("apply", "--server-side", "--force-conflicts", f"--filename={CRDS}")
