"""What a rank finds out about itself, and what several of them report together."""

import math

import pytest

from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError
from clotho_trainer.process.launch import verdict
from clotho_trainer.process.place import Place, names, take_place
from clotho_trainer.training.local.team import Report, merge

POD = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "trainer",
    "PET_MASTER_PORT": "29500",
}


def test_a_trainer_without_variables_is_alone() -> None:
    place = take_place({})
    assert (place.rank, place.size, place.must_launch) == (0, 1, False)


def test_a_pod_with_several_ranks_launches_them() -> None:
    assert take_place(dict(POD)).must_launch


def test_a_launched_process_is_numbered_after_the_pods_before_it() -> None:
    launched = {"LOCAL_RANK": "2", "RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "TORCHELASTIC_RUN_ID": "1"}
    environment = POD | launched | {"CLOTHO_TERMINATION_MESSAGE": "/tmp/end", "HOME": "/"}
    place = take_place(environment)
    assert place == Place(rank=6, size=8, local_rank=2, ranks_per_node=4, host="trainer", is_launched=True)
    assert not place.must_launch
    assert environment == POD | {"CLOTHO_TERMINATION_MESSAGE": "/tmp/end-2", "HOME": "/"}, "Accelerate sees none of it"


@pytest.mark.parametrize("change", [{"PET_NODE_RANK": "2"}, {"PET_NNODES": "auto"}, {"PET_MASTER_ADDR": ""}])
def test_variables_that_make_no_sense_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(TrainerError, match="PET_"):
        take_place(POD | change)


def test_ranks_are_named_with_their_hosts() -> None:
    assert names(("http://trainer:8001", "http://trainer-1:8001"), 2) == ("rank 0 (trainer)", "rank 1 (trainer-1)")
    assert names(("http://trainer:8001",), 2) == ("rank 0", "rank 1")


def test_reports_are_merged_by_trained_tokens() -> None:
    merged = merge(
        [
            Report(1.0, 30, {"entropy": 2.0, "kl": None}, {"policy_loss": 0.5}, {"memory": 7.0}),
            Report(0.5, 10, {"entropy": 4.0, "kl": 1.0}, {"policy_loss": 0.25}, {"memory": 9.0}),
            Report(0.0, 0),
        ]
    )
    assert merged == Report(1.5, 40, {"entropy": 2.5, "kl": 1.0}, {"policy_loss": 0.75}, {"memory": 9.0})


def test_a_loss_that_is_no_number_on_one_rank_is_none_on_all() -> None:
    loss = merge([Report(1.0, 1), Report(None, 1)]).loss
    assert loss is not None
    assert math.isnan(loss)


def ended(reason: str, message: str = "") -> Termination:
    return Termination(reason=reason, message=message)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ([ended("Finished"), ended("Finished")], "Finished"),
        ([ended("DependencyUnavailable"), ended("OutOfMemory")], "OutOfMemory"),
        ([ended("DependencyUnavailable"), None], "DependencyUnavailable"),
        ([None, None], "InternalError"),
    ],
)
def test_a_pod_ends_with_the_cause(endings: list[Termination | None], expected: str) -> None:
    assert verdict(endings).reason == expected
