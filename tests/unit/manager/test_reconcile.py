"""How a plan is carried out: pods are not made for what an old view shows."""

from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from clotho.cluster.apply import Writer
from clotho.cluster.outcomes import Conflict
from clotho.cluster.store import Store
from clotho.manager.metrics import Metrics
from clotho.manager.reconcile import Reconciler
from clotho.plan.model import Action, Create, ObjectKey, Plan
from clotho.plan.settings import PlanSettings
from rig.fake_api import FakeApi
from rig.objects import a_run, pod_body, run_body

RUN_PATH = "/apis/clotho.dev/v1alpha1/namespaces/ns/trainingruns/r"
CREATE_POD = "create /api/v1/namespaces/ns/pods"
POD = Create(key=ObjectKey("Pod", "r-trainer"), manifest=pod_body("trainer"))
SECRET = Create(key=ObjectKey("Secret", "r"), manifest={"metadata": {"name": "r", "namespace": "ns"}, "data": {}})


async def carry_out(api: FakeApi, *actions: Action) -> None:
    store, unused = Store(), cast(Any, None)
    reconciler = Reconciler(
        store=store,
        observer=unused,
        writer=Writer(cast(Any, api), store, lambda: True),
        announcers=(),
        steering=unused,
        keeper=unused,
        metrics=Metrics(CollectorRegistry()),
        settings=PlanSettings(),
    )
    await reconciler._carry_out(a_run(version=7), Plan(actions=actions))


def api_with_run(version: int | None) -> FakeApi:
    api = FakeApi()
    if version is not None:
        api.objects[RUN_PATH] = run_body(version)
    return api


async def test_a_pod_is_made_again_for_a_run_as_it_is() -> None:
    api = api_with_run(7)
    await carry_out(api, POD)
    assert api.requests == [f"get {RUN_PATH}", CREATE_POD]


@pytest.mark.parametrize("version", [8, None], ids=["has changed since", "is gone"])
async def test_no_pod_is_made_again_for_a_run_that(version: int | None) -> None:
    api = api_with_run(version)
    with pytest.raises(Conflict):
        await carry_out(api, POD)
    assert api.requests == [f"get {RUN_PATH}"]


async def test_a_new_run_costs_no_question() -> None:
    api = api_with_run(7)
    await carry_out(api, SECRET, POD)
    assert api.requests == ["create /api/v1/namespaces/ns/secrets", CREATE_POD]
