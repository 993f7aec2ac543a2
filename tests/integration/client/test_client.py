"""The Python client against a real API server, with an operator and a fake kubelet behind it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from clotho import Client, ClothoError
from clotho_dev.cluster.control_plane import ControlPlane
from rig.cluster_access import ClusterAccess, run_manifest
from rig.fake_kubelet import FakeKubelet
from rig.operator_process import OperatorProcess

FINISHED: dict[str, Any] = {
    "state": "finished",
    "step": 100,
    "totalSteps": 100,
    "rewardMean": 0.9,
    "history": [{"step": step, "rewardMean": step / 100} for step in (10, 100)],
    "checkpoint": {"step": 100, "path": "/ckpt/100"},
}


async def test_a_run_from_creation_to_deletion(
    control_plane: ControlPlane,
    cluster: ClusterAccess,
    kubelet: FakeKubelet,
    operator: OperatorProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a thread, because the client blocks and the fake kubelet needs this loop."""
    kubelet.progress = FINISHED
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run_manifest("from-file")))

    def use() -> None:
        with Client(cluster.namespace, kubeconfig=control_plane.kubeconfig) as client:
            run = client.create(file, settings={"training.seed": 7})
            assert run.spec["training"]["seed"] == 7
            assert run.wait(60).phase == "Completed"
            assert list(run.history()["step"]) == [10, 100], "a data frame: the tests have pandas"
            other = client.create(run_manifest("other")["spec"], name="other", steps=500)
            assert {each.name for each in client.runs()} == {"from-file", "other"}
            assert set(client.results()["steps"]) == {100, 500}
            with pytest.raises(ClothoError, match="already exists"):
                client.create(file)
            with pytest.raises(ClothoError, match="did you mean training"):
                client.create(file, settings={"training.sead": 1})
            with pytest.raises(ClothoError, match="did you mean other"):
                client.run("othr")
            other.delete()
            with pytest.raises(ClothoError, match="not found"):
                other.refresh()
        with pytest.raises(ClothoError, match="this client is closed"):
            client.runs()
        with Client("nowhere", kubeconfig=control_plane.kubeconfig) as lost:
            for ask in (lost.runs, lost.results):
                with pytest.raises(ClothoError, match="namespace 'nowhere' does not exist"):
                    ask()

    await asyncio.to_thread(use)
    assert "Completed: " in capsys.readouterr().out
