"""Objects nested deeper than a recursive decoder can follow: refused with a reason, without effect on any other."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from rig.cluster_access import Body, ClusterAccess, component, create_eventually, eventually, run_manifest
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

StartOperator = Callable[..., Awaitable[OperatorProcess]]


def nested(levels: int) -> msgspec.Raw:
    return msgspec.Raw(b'{"a":' * levels + b"1" + b"}" * levels)


async def create_deep_objects(cluster: ClusterAccess, levels: int) -> None:
    environments: list[dict[str, Any]] = [{"name": "letters", "config": nested(levels)}]
    await create_eventually(cluster, "trainingruns", run_manifest("deep", environments=environments))
    entry = {
        "apiVersion": "clotho.dev/v1alpha1",
        "kind": "Environment",
        "metadata": {"name": "deep"},
        "spec": {"image": "i", "config": nested(levels)},
    }
    await create_eventually(cluster, "environments", entry)


async def is_refused(cluster: ClusterAccess, plural: str) -> tuple[bool, Body]:
    status = (await cluster.get(plural, "deep")).get("status", {})
    return "nested more than" in status.get("message", ""), status


async def assert_only_the_deep_objects_are_refused(cluster: ClusterAccess, operator: OperatorProcess) -> None:
    await eventually("run refused", lambda: is_refused(cluster, "trainingruns"))
    await eventually("environment refused", lambda: is_refused(cluster, "environments"))
    await cluster.create_run("good")
    await cluster.until_phase("Running", "good")
    assert await cluster.pods("deep") == []
    assert (await operator.get("/healthz"))[0] == 200
    await cluster.delete("trainingruns", "deep")
    await cluster.delete("environments", "deep")
    await cluster.until_gone("trainingruns", "deep")
    await cluster.create_run("later")
    await cluster.until_phase("Running", "later")


@pytest.mark.parametrize("levels", [400, 1000, 5000])
async def test_deep_objects_that_exist_before_the_start_are_skipped(
    cluster: ClusterAccess, kubelet: FakeKubelet, lenient_crds: None, start_operator: StartOperator, levels: int
) -> None:
    await create_deep_objects(cluster, levels)
    await assert_only_the_deep_objects_are_refused(cluster, await start_operator())


async def test_deep_objects_created_while_the_operator_runs_are_skipped(
    cluster: ClusterAccess, kubelet: FakeKubelet, lenient_crds: None, operator: OperatorProcess
) -> None:
    await cluster.create_run("first")
    await cluster.until_phase("Running", "first")
    await create_deep_objects(cluster, 1000)
    await assert_only_the_deep_objects_are_refused(cluster, operator)


async def test_deep_json_from_a_pod_does_not_freeze_its_run(
    cluster: ClusterAccess, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """As a trainer's answer, and as its termination message."""
    await cluster.create_run("r")
    await cluster.until_phase("Running", "r")
    kubelet.progress = {"state": "training", "step": 1, "totalSteps": 100, "extra": nested(1500)}
    failures = 'clotho_probe_failures_total{target="trainer"}'

    async def has_failed() -> tuple[bool, float]:
        value = await operator.metric(failures)
        return value > 0, value

    await eventually("refused answer", has_failed)
    (trainer,) = [pod for pod in await cluster.pods("r") if component(pod) == "trainer"]
    kubelet.progress = {"state": "training", "step": 2, "totalSteps": 100, "registered": True, "serving": True}
    await kubelet.fail(trainer, message='{"reason":' + "[" * 1900 + "]" * 1900 + "}")
    await cluster.until("restarted", lambda r: r["status"].get("restarts") == 1, "r")
    await cluster.until_phase("Running", "r")
