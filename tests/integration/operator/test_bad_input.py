"""Objects that got past admission, because the CRD was different then: they are told so, and disturb no other run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clotho.cluster.outcomes import Invalid
from clotho_dev.cluster.kubectl import Kubectl
from rig.cluster_access import Body, ClusterAccess, condition, eventually, run_manifest
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

ROOT = Path(__file__).parents[3]
CRD = "trainingruns.clotho.dev"
ANYTHING_GOES = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@pytest.fixture
def lenient_crd(kubectl: Kubectl, crds: None) -> Iterator[None]:
    """A CRD that takes anything, as one of another version might."""
    change = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema", "value": ANYTHING_GOES}]
    kubectl.run("patch", "crd", CRD, "--type=json", f"--patch={json.dumps(change)}")
    yield
    kubectl.run("apply", "--server-side", "--force-conflicts", f"--filename={ROOT / 'crds'}")


async def slip_in(cluster: ClusterAccess, body: Body) -> None:
    """The changed CRD takes a moment to be in force."""

    async def attempt() -> tuple[bool, str]:
        try:
            await cluster.client.create(cluster.folder("trainingruns"), body, Body)
        except Invalid as error:
            return False, str(error)
        return True, ""

    await eventually("created", attempt)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"steps": "many"}}, "spec.training.steps: expected `int`, got `str`"),
        ({"training": {"steps": 10, "stepz": 3}}, "stepz"),
        ({"training": {"steps": 10, "batchSize": 10}}, "training.batchSize: 10 is not a multiple of group_size 4"),
        ({"environments": []}, "spec.environments"),
        ({"model": None}, "spec.model"),
    ],
)
async def test_what_slipped_in_is_refused_and_disturbs_nobody(
    cluster: ClusterAccess,
    kubelet: FakeKubelet,
    lenient_crd: None,
    operator: OperatorProcess,
    change: Body,
    words: str,
) -> None:
    await slip_in(cluster, run_manifest("bad", **change))
    await cluster.create_run("good")
    run = await cluster.until("refused", lambda r: condition_of(r, "Accepted").get("status") == "False", "bad")
    assert words in condition(run, "Accepted")["message"]
    assert words in run["status"]["message"]
    assert await cluster.pods("bad") == []
    await cluster.until_phase("Running", "good")
    assert (await operator.get("/healthz"))[0] == 200


def condition_of(run: Body, kind: str) -> Body:
    return condition(run, kind) if "status" in run else {}
