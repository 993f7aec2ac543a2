"""A policy that two ranks share (FSDP2) and a replica serves: every process as it is in its pod."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from clotho_dev.ports import free_port
from integration.loop.processes import RANKS, TOKEN, Ports, Run, letters_config, tiny_model, until

pytestmark = pytest.mark.timeout(900)  # many interpreters import torch and friends: slow on a busy machine


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    ports = Ports(further_ranks=((free_port(), free_port()),))
    config = letters_config(tiny_model(tmp_path / "tiny"), ports, steps=100_000)
    endpoints = structs.replace(
        config.endpoints, serving_ranks=0, inference_replicas=(f"http://127.0.0.1:{ports.replica}",)
    )
    sharded = structs.replace(config, sharding="fsdp", endpoints=endpoints)
    run = Run(sharded, ports, tmp_path, extra_environment={"CLOTHO_INFERENCE_TOKEN": TOKEN})
    try:
        yield run
    finally:
        run.close()


def step(run: Run) -> int:
    return int(run.progress().get("step", 0))


def test_a_sharded_policy_is_trained_stopped_and_resumed_by_one_rank(run: Run) -> None:
    for name in ("api-server", *RANKS[:2], "replica", "environment"):
        run.start(name)  # type: ignore[arg-type]
    until(lambda: step(run) >= 3, run, "three steps on samples of the replica")

    run.processes["trainer-1"].terminate()  # any rank's stop is everyone's, and all of them are needed to save
    assert [run.wait(name, timeout=120) for name in RANKS[:2]] == [0, 0], run.tail("trainer")
    last = run.termination("trainer")
    assert last["reason"] == "Stopped"
    checkpoint = run.folder / "trainer" / "checkpoints" / f"step-{last['step']:08d}"
    assert {"adapter_model.safetensors", "optimizer.pt", "state.pt"} <= {file.name for file in checkpoint.iterdir()}

    del run.processes["trainer-1"]
    run.ports.further_ranks = ()
    whole = structs.replace(run.config.endpoints, serving_ranks=None, inference_ranks=())
    run.config = structs.replace(run.config, sharding="none", endpoints=whole)
    run.start("trainer")
    until(lambda: step(run) >= last["step"] + 2, run, "two more steps of one rank")
    steps = [taken for taken, _ in run.steps()]
    assert steps[: last["step"] + 2] == list(range(1, last["step"] + 3)), "no step is lost or repeated"
