"""One policy on three ranks: every process as it is in its pod, from the first step over a stop to a lost rank."""

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clotho_dev.ports import free_port
from integration.loop.processes import RANKS, Ports, Run, letters_config, tiny_model, until

pytestmark = pytest.mark.timeout(900)  # many interpreters import torch and friends: slow on a busy machine


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    ports = Ports(further_ranks=tuple((free_port(), free_port()) for _ in RANKS[1:]))
    run = Run(letters_config(tiny_model(tmp_path / "tiny"), ports), ports, tmp_path)
    try:
        run.start("api-server")
        run.start("environment")
        yield run
    finally:
        run.close()


def start_ranks(run: Run) -> None:
    for name in RANKS:
        run.start(name)


def sampled_tokens(run: Run) -> list[float]:
    """By rank."""
    found = []
    for rank in range(len(RANKS)):
        url = f"http://127.0.0.1:{run.ports.of_rank(rank)[1]}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
        found += [sample.value for sample in samples if sample.name == "clotho_trainer_sampled_tokens_total"]
    return found


def test_three_ranks_train_stop_resume_and_end_together(run: Run) -> None:
    start_ranks(run)
    until(lambda: run.progress().get("step", 0) >= 20, run, "step 20")  # the groups in flight weigh little by then
    tokens = sampled_tokens(run)
    # A rank that is short of CPU rightly gets less; test_routing.py holds ranks of equal speed to equal shares.
    assert min(tokens) > sum(tokens) / len(tokens) / 2, "each rank serves its share"

    run.processes["trainer-2"].terminate()  # any rank's stop is everyone's, and keeps the last step
    assert [run.wait(name, timeout=60) for name in RANKS] == [0, 0, 0], run.tail("trainer")
    stopped = [run.termination(name) for name in RANKS]
    assert {(end["reason"], end["message"]) for end in stopped} == {("Stopped", stopped[0]["message"])}
    step = stopped[0]["step"]
    assert (run.folder / "trainer" / "checkpoints" / f"step-{step:08d}").is_dir()
    assert not (run.folder / "trainer-1" / "checkpoints").exists()

    start_ranks(run)
    until(lambda: run.progress().get("step", 0) >= step + 2, run, "two more steps")
    steps = [taken for taken, _ in run.steps()]
    assert steps[: step + 2] == list(range(1, step + 3)), "no step is lost or repeated"

    began = time.monotonic()
    run.kill("trainer-2")
    assert [run.wait(name, timeout=60) for name in RANKS[:2]] == [1, 1]
    seconds = time.monotonic() - began
    lost = "rank 2 (127.0.0.1) ended without a message"
    first, second = run.termination("trainer"), run.termination("trainer-1")
    assert (first["reason"], first["message"]) == ("DependencyUnavailable", lost)
    assert second["reason"] == "DependencyUnavailable"
    assert second["message"] == f"rank 0 (127.0.0.1) ended with DependencyUnavailable: {lost}"
    assert seconds < 30
    print({"sampled_tokens": tokens, "seconds_until_the_others_ended": round(seconds, 1)})
