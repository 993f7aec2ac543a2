"""Objects of an earlier release under today's CRDs, on a real API server: each one is valid and reads the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from clotho.api.phases import Phase
from clotho.api.training_run import parse
from clotho_dev.cluster.kubectl import Kubectl

ROOT = Path(__file__).parents[3]
RELEASES = sorted((ROOT / "tests" / "fixtures").glob("release-*"))
PUBLISHED = "/openapi/v3/apis/clotho.dev/v1alpha1"
KINDS = "trainingruns,environments,inferencetests,trainingpolicies"
LIMIT_SECONDS = 60
Object = dict[str, Any]


def install(kubectl: Kubectl, crds: Path) -> None:
    """Until the API server serves these schemas, which is a moment after the CRDs are established."""
    wanted = {path.name: yaml.safe_load(path.read_text()) for path in crds.glob("*.yaml")}
    kubectl.run("apply", "--server-side", "--force-conflicts", f"--filename={crds}")
    kubectl.run("wait", "--for=condition=Established", *(f"crd/{crd['metadata']['name']}" for crd in wanted.values()))
    deadline = time.monotonic() + LIMIT_SECONDS
    while not all(is_served(kubectl, crd) for crd in wanted.values()):
        assert time.monotonic() < deadline, "the API server does not serve the schemas"
        time.sleep(0.1)


def is_served(kubectl: Kubectl, crd: Object) -> bool:
    schemas = json.loads(kubectl.run("get", "--raw", PUBLISHED))["components"]["schemas"]
    served = schemas.get(f"dev.clotho.v1alpha1.{crd['spec']['names']['kind']}", {}).get("properties", {})
    stored = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return all(
        set(served.get(part, {}).get("properties", {})) == set(stored[part].get("properties", {}))
        for part in stored.keys() & {"spec", "status"}
    )


def stored_objects(kubectl: Kubectl) -> dict[tuple[str, str], Object]:
    return {(item["kind"], item["metadata"]["name"]): item for item in kubectl.get(KINDS)["items"]}


def differences(before: Any, after: Any, path: str) -> list[str]:
    """What was there and is not, or is something else; what today's defaults add is welcome."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [line for key, value in before.items() for line in differences(value, after.get(key), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for index, (was, now) in pairs for line in differences(was, now, f"{path}[{index}]")]
    return [] if before == after else [f"{path}: {before} became {after}"]


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def earlier(request: pytest.FixtureRequest, kubectl: Kubectl) -> Iterator[Path]:
    """Its CRDs are installed; whatever happens, today's are afterwards."""
    release: Path = request.param
    try:
        install(kubectl, release / "chart" / "files" / "crds")
        yield release
    finally:
        install(kubectl, ROOT / "crds")


def create(kubectl: Kubectl, objects: list[Object]) -> None:
    kubectl.run("create", "--filename=-", stdin=yaml.safe_dump_all(objects))
    for item in objects:
        if "status" in item:
            patch = f"--patch={json.dumps({'status': item['status']})}"
            where = (item["kind"], item["metadata"]["name"], "--subresource=status")
            kubectl.run("patch", *where, "--type=merge", patch)


def phases(objects: Iterable[Object]) -> set[str]:
    return {item["status"]["phase"] for item in objects if item["kind"] == "TrainingRun"}


def test_stored_objects_stay_valid_and_read_the_same(earlier: Path, kubectl: Kubectl, namespace: str) -> None:
    inside = kubectl.in_namespace(namespace)
    objects = list(yaml.safe_load_all((earlier / "objects.yaml").read_text()))
    create(inside, objects)
    before = stored_objects(inside)
    assert len(before) == len(objects)
    assert phases(before.values()) == set(get_args(Phase)), "a run in every phase"

    install(kubectl, ROOT / "crds")
    after = stored_objects(inside)
    parts = [(key, part) for key in before for part in ("spec", "status") if part in before[key]]
    lost = [line for key, part in parts for line in differences(before[key][part], after[key][part], f"{key} {part}")]
    assert lost == []
    inside.run("annotate", KINDS, "--all", "checked=true", "--dry-run=server")  # an update, so each one is validated
    read = [parse(item) for (kind, _), item in after.items() if kind == "TrainingRun"]
    assert {run.status.phase for run in read} == set(get_args(Phase)), "and today's operator reads them"
    inside.run("delete", KINDS, "--all", "--wait=false")
