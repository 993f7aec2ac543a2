"""What pods can write to their node's disk is bounded, the template's own volumes and containers included."""

from typing import Any

import pytest

from clotho.render import pods
from clotho.render.quantity import quantity_bytes
from unit.render.cases import SETTINGS, run_of
from unit.render.recorded import RECORDED

Body = dict[str, Any]
EPHEMERAL = "ephemeral-storage"
SCRATCH = {"spec": {"volumes": [{"name": "mine", "emptyDir": {}}], "containers": [{"name": "side", "image": "i"}]}}


def all_pods() -> list[Body]:
    recorded = [each for render in RECORDED.values() for each in render() if each["kind"] == "Pod"]
    run = run_of(
        {
            "model": {"name": "m"},
            "environments": [{"name": "letters"}],
            "training": {"steps": 1},
            "storage": {"ephemeral": True},
            "trainer": {"template": SCRATCH},
        }
    )
    return [*recorded, pods.trainer_pod(run, SETTINGS, restarts=0, attempt=1)]


def empty_dirs(pod: Body) -> list[Body]:
    return [volume["emptyDir"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume]


@pytest.mark.parametrize("pod", all_pods(), ids=lambda pod: pod["metadata"]["name"])
def test_every_empty_dir_and_every_container_has_a_limit(pod: Body) -> None:
    assert all("sizeLimit" in source for source in empty_dirs(pod))
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    assert all(EPHEMERAL in each["resources"]["limits"] for each in containers)
    requests = {each["resources"]["requests"][EPHEMERAL] for each in containers}
    assert requests == {"0"}, "a node without local storage isolation offers none, and could run no pod"
    on_disk = sum(quantity_bytes(each["sizeLimit"]) for each in empty_dirs(pod) if "medium" not in each)
    limits = sum(quantity_bytes(each["resources"]["limits"][EPHEMERAL]) for each in pod["spec"]["containers"])
    assert on_disk < limits, "volumes that are filled up to their own limit must not evict the pod"


def test_an_ephemeral_run_is_limited_by_its_storage_size() -> None:
    run = run_of(
        {
            "model": {"name": "m"},
            "environments": [{"name": "letters"}],
            "training": {"steps": 1},
            "storage": {"ephemeral": True, "size": "7Gi", "apiServerSize": "3Gi"},
        }
    )
    for pod, size in (
        (pods.trainer_pod(run, SETTINGS, restarts=0, attempt=1), "7Gi"),
        (pods.api_server_pod(run, SETTINGS, restarts=0), "3Gi"),
    ):
        assert {"name": "data", "emptyDir": {"sizeLimit": size}} in pod["spec"]["volumes"]


@pytest.mark.parametrize("size", ["lots", "1e3", "100m", "5Ei"])
def test_an_unparsable_size_is_left_to_the_api_server(size: str) -> None:
    template = {"spec": {"volumes": [{"name": "mine", "emptyDir": {"sizeLimit": size}}]}}
    run = run_of(
        {
            "model": {"name": "m"},
            "environments": [{"name": "letters"}],
            "training": {"steps": 1},
            "trainer": {"template": template},
        }
    )
    pod = pods.trainer_pod(run, SETTINGS, restarts=0, attempt=1)
    assert {"name": "mine", "emptyDir": {"sizeLimit": size}} in pod["spec"]["volumes"]


@pytest.mark.parametrize("pod", all_pods(), ids=lambda pod: pod["metadata"]["name"])
def test_a_hung_process_is_killed_without_the_pods_grace_period(pod: Body) -> None:
    for container in pod["spec"]["containers"]:
        for kind in ("livenessProbe", "startupProbe"):
            if kind in container:
                assert container[kind]["terminationGracePeriodSeconds"] == 10
