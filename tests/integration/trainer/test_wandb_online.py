"""Weights & Biases online: the SDK itself against a server on loopback that records what it sends."""

import asyncio
import os
import sys
from pathlib import Path

from integration.trainer.wandb_stand_in import WandbStandIn

# In a process of its own: the SDK leaves a service and handlers behind.
SCRIPT = """
import sys
from pathlib import Path
from clotho_contract.config import Endpoints, RunConfig, RunIdentity
from clotho_contract.history import Evaluation
from clotho_contract.settings import Model, Training, Wandb
from clotho_trainer.reporting import trackers

config = RunConfig(
    run=RunIdentity(name="sums", namespace="default", id="sums-1a2b"),
    endpoints=Endpoints(api_server="http://api", inference="http://inference"),
    model=Model(name="some/model"),
    training=Training(steps=2),
    wandb=Wandb(project="letters", entity="team", mode="online"),
)
tracker = trackers.start(config, Path(sys.argv[1]))
print(tracker.url)
tracker.log(1, {"loss": 0.5}, [("2+2?", "4", 1.0)])
tracker.log_evaluation(Evaluation(step=1, time="2026-01-01T00:00:00Z", environment="sums", figures={"accuracy": 0.75}))
tracker.finish(0)
"""


async def test_figures_and_evaluations_reach_the_service(tmp_path: Path) -> None:
    async with WandbStandIn().serving() as service:
        variables = {"WANDB_BASE_URL": service.url, "WANDB_API_KEY": "a" * 40, "HOME": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SCRIPT,
            str(tmp_path / "data"),
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert f"{service.url}/team/letters/runs/sums-1a2b" in output.decode()
    sent = {name: service.run[name] for name in ("entity", "project", "name", "groupName", "displayName")}
    assert sent == {
        "entity": "team",
        "project": "letters",
        "name": "sums-1a2b",
        "groupName": "sums-1a2b",
        "displayName": "sums-sums-1a2b",
    }
    figures = [{name: row[name] for name in row if not name.startswith("_")} for row in service.rows]
    assert figures == [{"step": 1, "loss": 0.5}, {"step": 1, "evaluation/sums/accuracy": 0.75}]
    assert "did not take step 1" in output.decode(), "the service has no artifacts, which the table of samples needs"
    assert service.exit_code == 0
    assert all(header.startswith("Basic ") for header in service.authorizations)
