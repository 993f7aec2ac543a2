"""Several ranks train as one: real processes that exchange gradients over gloo on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from clotho_contract.config import render
from clotho_contract.settings import Inference
from clotho_dev.ports import free_port
from integration.loop.processes import ROOT, SOURCES
from integration.trainer.rank_process import LOSSES
from integration.trainer.tiny import config

SIZE = 3
pytestmark = pytest.mark.timeout(900)  # three ranks, and a busy machine


@pytest.fixture(scope="module")
def found(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By each rank."""
    folder, port = tmp_path_factory.mktemp("ranks"), free_port()
    paths = os.pathsep.join(map(str, [*SOURCES, ROOT / "tests", ROOT / "dev"]))
    variables = {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    arguments = ["-m", "integration.trainer.rank_process", str(SIZE), str(port), str(model), str(folder)]
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | variables,
        check=False,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


@pytest.mark.parametrize("loss", [*LOSSES, "entropy"])
def test_gradients_are_those_of_one_process(found: list[dict[str, Any]], loss: str) -> None:
    """Also with a rank that has no rows, and with one that ran out of memory and repeated its share."""
    first = found[0][loss]
    assert max(first["gradients"]) < 1e-5, first
    assert max(first["loss"]) < 1e-5, first
    assert first["figures"] == [], "the same figures are reported"
    assert len({rank[loss]["weights"] for rank in found}) == 1, "ranks stay equal to the last bit"
    assert [rank[loss]["repeated"] for rank in found] == [False, True, False]
    rows = [rank[loss]["rows"] for rank in found]
    assert [sum(shares) for shares in zip(*rows, strict=True)] == [12, 4, 2]
    assert rows[2][2] == 0, "the last batch leaves nothing for the last rank"


@pytest.mark.parametrize("rank", [8, 0], ids=["adapters", "full"])
@pytest.mark.parametrize("loss", [*LOSSES, "entropy", "reference", "tied"])
def test_sharded_gradients_are_those_of_one_process(found: list[dict[str, Any]], loss: str, rank: int) -> None:
    """Also with a rank that has no rows. No rank has the whole model."""
    outcomes = [each["sharded"][f"{loss} {rank}"] for each in found]
    first = outcomes[0]
    assert max(first["gradients"]) < 1e-5, first
    assert max(first["loss"]) < 1e-5, first
    assert first["figures"] == [], "the same figures are reported"
    assert len({each["weights"] for each in outcomes}) == 1, "all ranks gather the same weights"
    assert outcomes[2]["rows"][2] == 0, "the last batch leaves nothing for the last rank"
    assert max(each["share"] for each in outcomes) < 0.4
    assert sum(each["share"] for each in outcomes) == pytest.approx(1)


@pytest.mark.parametrize("rank", ["8", "0"], ids=["adapters", "full"])
def test_checkpoints_are_the_same_sharded_or_not(found: list[dict[str, Any]], rank: str) -> None:
    first = found[0]["crossed"][rank]
    assert first["restored"] == 0, "what one process resumes is what was sharded, to the last bit"
    assert max(first["norm"], first["norm_after"]) < 1e-5, first
    assert first["weights_after"] < 1e-5
    assert first["files"][0] == first["files"][1]
    assert [each["crossed"][rank]["versions"] for each in found] == [[2, 3]] * SIZE


def test_a_sharded_rank_that_runs_out_of_memory_ends_with_advice(found: list[dict[str, Any]]) -> None:
    advice = "lower training.microBatchSize or training.maxTokens, or add ranks"
    sentence = "With trainer.sharding fsdp a step is not repeated in smaller passes"
    assert {each["out_of_memory"] for each in found} == {f"OutOfMemory: for the test. {sentence}: {advice}"}


def test_a_pod_with_several_ranks_ends_with_the_message_of_its_ranks(tmp_path: Path) -> None:
    """As torchrun starts them; here each finds at once that the run cannot have ranks."""
    settings = structs.replace(config(tmp_path), inference=Inference(engine="vllm"))
    (tmp_path / "run.yaml").write_text(render(settings))
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
        "PET_NPROC_PER_NODE": "2",
        "CLOTHO_TOKEN": "token",
        "CLOTHO_TERMINATION_MESSAGE": str(tmp_path / "termination"),
    }
    command = [sys.executable, "-m", "clotho_trainer", "train", "--config", str(tmp_path / "run.yaml")]
    done = subprocess.run(command, env=os.environ | variables, check=False, capture_output=True, text=True)
    end = json.loads((tmp_path / "termination").read_text())
    assert (done.returncode, end["reason"]) == (2, "InvalidConfig"), done.stderr
    assert end["message"].startswith("inference.engine vllm serves one rank, and the trainer has 2")


def test_a_checkpoint_of_rank_0_resumes_all_ranks(found: list[dict[str, Any]]) -> None:
    outcomes = [rank["resumed"] for rank in found]
    assert [each["versions"] for each in outcomes] == [[1, 1]] * SIZE
    assert len({each["weights"] for each in outcomes} | {each["expected"] for each in outcomes}) == 1
