"""Install, upgrade and roll back while a run is training: it continues in the same pods."""

from pathlib import Path

import pytest

from rig.helm_release import CHART, RELEASE, ExampleRun, Helm

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def running(helm: Helm, previous_chart: Path, values: tuple[str, ...], run: ExampleRun) -> ExampleRun:
    """The previous release, with a run that trains."""
    helm.upgrade(previous_chart, *values)
    run.start(steps=5000)
    run.until_trained(2)
    return run


def test_helm_test_of_the_release_passes(helm: Helm, running: ExampleRun) -> None:
    assert "Succeeded" in helm.run("test", RELEASE)
    assert running.kstatus() == "Current"


@pytest.mark.parametrize("change", ["upgrade", "rollback"])
def test_running_run_continues_through_an_upgrade_of_the_chart(
    helm: Helm, running: ExampleRun, values: tuple[str, ...], change: str
) -> None:
    pods, step = running.pods(), running.step()
    if change == "upgrade":
        helm.upgrade(CHART, *values, "replicas=2", "settings.log.level=debug")
    else:
        helm.run("rollback", RELEASE, "--wait", "--timeout=120s")
    after = running.until_trained(step + 5)
    assert running.pods() == pods
    assert after["status"]["restarts"] == 0
    assert after["status"]["phase"] == "Running"
    assert running.kstatus() == "Current"
