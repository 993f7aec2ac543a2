"""Objects that got past admission because the CRD was different then: refused with a reason; others are unaffected."""

import pytest

from rig.cluster_access import Body, ClusterAccess, condition, create_eventually, run_manifest
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess


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
async def test_an_invalid_run_that_was_stored_is_refused_and_disturbs_no_other(
    cluster: ClusterAccess,
    kubelet: FakeKubelet,
    lenient_crds: None,
    operator: OperatorProcess,
    change: Body,
    words: str,
) -> None:
    await create_eventually(cluster, "trainingruns", run_manifest("bad", **change))
    await cluster.create_run("good")
    run = await cluster.until("refused", lambda r: condition_of(r, "Accepted").get("status") == "False", "bad")
    assert words in condition(run, "Accepted")["message"]
    assert words in run["status"]["message"]
    assert await cluster.pods("bad") == []
    await cluster.until_phase("Running", "good")
    assert (await operator.get("/healthz"))[0] == 200


def condition_of(run: Body, kind: str) -> Body:
    return condition(run, kind) if "status" in run else {}
