"""The learning rate, threads, preflight, failures and the board: small rules, one table each."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from clotho_contract.config import ConfigError, Endpoints, EnvironmentConfig, RunConfig, RunIdentity
from clotho_contract.inline import Dataset, Inline, Measure, Rewards, Tools
from clotho_contract.policy_updates import LOAD_VALID_SECONDS, Load
from clotho_contract.progress import CheckpointInfo
from clotho_contract.settings import Inference, Lora, Model, Training, Vllm, WorldModel
from clotho_contract.termination import Termination
from clotho_trainer.failures import TrainerError, classify, exit_code
from clotho_trainer.hardware.processors import available_processors, thread_count
from clotho_trainer.process import preflight
from clotho_trainer.reporting.board import Board
from clotho_trainer.reporting.waiting import Waiting, occupancy
from clotho_trainer.training.schedule import learning_rate


def config(*, model: Model | None = None, training: Training | None = None, group_size: int = 16) -> RunConfig:
    return RunConfig(
        run=RunIdentity(name="run", namespace="default", id="run-1"),
        endpoints=Endpoints(api_server="http://api", inference="http://inference"),
        model=model or Model(name="some/model"),
        training=training or Training(steps=10),
        environments=(EnvironmentConfig(name="gsm8k", config={"group_size": group_size}),),
    )


@pytest.mark.parametrize(
    ("scheduler", "warmup", "rates"),
    [
        ("constant", 0, [1.0, 1.0, 1.0]),
        ("constant", 4, [1.0, 1.0, 1.0]),
        ("constant_with_warmup", 4, [0.2, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.5, 0.1]),
        ("linear", 5, [1 / 6, 1.0, 0.2]),
        ("cosine", 0, [1.0, 0.5, 0.0245]),
    ],
)
def test_the_learning_rate_is_a_function_of_the_step(scheduler: str, warmup: int, rates: list[float]) -> None:
    training = Training(steps=10, learning_rate=1.0, scheduler=scheduler, warmup_steps=warmup)  # type: ignore[arg-type]
    assert [learning_rate(training, step) for step in (0, 5, 9)] == pytest.approx(rates, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "expected"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("", 64)]
)
def test_threads_follow_the_containers_limit(
    text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    cgroup = tmp_path / "cpu.max"
    cgroup.write_text(text)
    assert available_processors(cgroup) == expected


def test_tiny_models_use_one_thread() -> None:
    assert thread_count(90_000, available=8) == 1
    assert thread_count(600_000_000, available=8) == 8


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            config(training=Training(steps=1, batch_size=100)),
            "training.batchSize: 100 is not a multiple of group_size 16 (environment gsm8k); use 96 or 112",
        ),
        (
            config(training=Training(steps=1, batch_size=128, micro_batch_size=24)),
            "training.microBatchSize: 24 does not divide batchSize 128; use a divisor, or 0 to let the trainer choose",
        ),
        (
            config(model=Model(name="m", quantization="nf4"), training=Training(steps=1, lora=Lora(rank=0))),
            "model.quantization nf4 trains adapters only: set training.lora.rank above 0",
        ),
        (
            config(model=Model(name="m", quantization="fp8"), training=Training(steps=1, lora=Lora(rank=0))),
            "model.quantization fp8 trains adapters only: set training.lora.rank above 0",
        ),
        (
            structs.replace(config(), inference=Inference(engine="vllm", kv_cache_dtype="fp8")),
            "inference.kvCacheDtype fp8 needs inference.engine auto or fast",
        ),
    ],
)
def test_a_wrong_config_is_refused_before_anything_loads(wrong: RunConfig, sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        preflight.check(wrong)
    assert (caught.value.reason, caught.value.message) == ("InvalidConfig", sentence)


def inline_run(*, training: Training | None = None, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {"dataset": Dataset(path="train.jsonl"), "rewards": Rewards(model="rewards:score")}
    base = structs.replace(config(training=training), environments=())
    return structs.replace(base, inline=Inline(**(fields | changes)))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (structs.replace(inline_run(), environments=config().environments), "a run has either environments or inline"),
        (inline_run(dataset=Dataset()), "inline.dataset: give either path or hub"),
        (inline_run(rewards=Rewards()), "inline.rewards: nothing is rewarded; give a model, measures or functions"),
        (
            inline_run(rewards=Rewards(measures=(Measure(name="a", entry="m:a"), Measure(name="a", entry="m:b")))),
            "inline.rewards: the name a appears more than once",
        ),
        (inline_run(tools=Tools()), "inline.tools: give exactly one of functions, environment and rollout"),
        (
            inline_run(tools=Tools(environment="m:A", rollout="m:b")),
            "inline.tools: give exactly one of functions, environment and rollout",
        ),
        (
            inline_run(training=Training(steps=1, world_model=WorldModel(coefficient=0.1))),
            "training.worldModel.coefficient: without inline.tools there are no tool results to learn from",
        ),
        (
            inline_run(training=Training(steps=1, max_tokens=1024)),
            "inline.maxCompletionTokens: 1024 leaves no room for a prompt; it must be below training.maxTokens 1024",
        ),
    ],
)
def test_a_wrong_inline_run_is_refused(wrong: RunConfig, sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        preflight.checked(wrong)
    assert caught.value.reason == "InvalidConfig"
    assert caught.value.message.startswith(sentence)


def test_rewards_and_tools_given_from_python_satisfy_preflight() -> None:
    echo = Training(steps=1, world_model=WorldModel(coefficient=0.1))
    preflight.checked(inline_run(training=echo, rewards=Rewards()), preflight.Given(rewards=True, tools=True))


def test_batches_hold_whole_groups(caplog: pytest.LogCaptureFixture) -> None:
    uneven = inline_run(training=Training(steps=1, batch_size=10, micro_batch_size=5))
    assert preflight.checked(uneven).training.batch_size == 16
    assert "training.batchSize is raised from 10 to 16, so that it holds whole groups of 8" in caplog.text


@pytest.mark.parametrize(
    ("vllm", "sentence"),
    [
        (Vllm(mode="server"), "inference.vllm: the mode server needs url, and adapterPath"),
        (Vllm(mode="server", url="http://v", adapter_path="/a", tensor_parallel=2), "inference.vllm.tensorParallel: "),
        (Vllm(url="http://v"), "inference.vllm: url and adapterPath belong to the mode server"),
    ],
)
def test_wrong_options_of_vllm_are_refused(vllm: Vllm, sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        preflight.checked(structs.replace(config(), inference=Inference(engine="vllm", vllm=vllm)))
    assert caught.value.message.startswith(sentence)
    preflight.checked(structs.replace(config(), inference=Inference(vllm=vllm)))


@pytest.mark.parametrize(
    ("changes", "ranks", "sentence"),
    [
        ({}, 1, "sharding fsdp spreads the model over ranks, and this trainer has one"),
        (
            {"model": Model(name="some/model", quantization="nf4")},
            2,
            "sharding fsdp cannot spread weights of model.quantization nf4: use none",
        ),
    ],
)
def test_sharding_that_cannot_work_is_refused(changes: dict[str, Any], ranks: int, sentence: str) -> None:
    with pytest.raises(TrainerError) as caught:
        preflight.checked(structs.replace(config(), sharding="fsdp", **changes), ranks=ranks)
    assert caught.value.message == sentence


def test_all_weights_are_served_by_a_vllm_of_the_pod_only() -> None:
    full = config(training=Training(steps=10, lora=Lora(rank=0)))
    preflight.checked(structs.replace(full, inference=Inference(engine="vllm")))
    server = Inference(engine="vllm", vllm=Vllm(mode="server", url="http://v", adapter_path="/a"))
    with pytest.raises(TrainerError, match=r"^inference.vllm.mode server serves adapters only: set training.lora.rank"):
        preflight.checked(structs.replace(full, inference=server))


def test_a_vllm_server_serves_a_sharded_policy() -> None:
    server = Inference(engine="vllm", vllm=Vllm(mode="server", url="http://v", adapter_path="/a"))
    preflight.checked(structs.replace(config(), sharding="fsdp", inference=server), ranks=2)
    with pytest.raises(TrainerError, match=r"^inference.engine vllm serves one rank, and the trainer has 2"):
        preflight.checked(structs.replace(config(), inference=server), ranks=2)


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


@pytest.mark.parametrize(
    ("error", "reason", "words", "code"),
    [
        (TrainerError("ModelUnreadable", "no such folder"), "ModelUnreadable", "no such folder", 1),
        (ConfigError("run.yaml: steps"), "InvalidConfig", "run.yaml: steps", 2),
        (OutOfMemoryError("CUDA out of memory. Tried\nmore"), "OutOfMemory", "Tried; lower training.microBatch", 1),
        (ZeroDivisionError("division by zero"), "InternalError", "ZeroDivisionError: division by zero", 1),
    ],
)
def test_failures_are_classified(error: Exception, reason: str, words: str, code: int) -> None:
    termination = classify(error, step=7)
    assert termination.reason == reason
    assert words in termination.message
    assert "\n" not in termination.message
    assert termination.step == 7
    assert exit_code(termination) == code


def test_a_good_end_exits_with_zero() -> None:
    assert exit_code(Termination(reason="Finished", message="done")) == 0
    assert exit_code(Termination(reason="Stopped", message="saved")) == 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_beyond_the_stall_limit_is_unhealthy() -> None:
    clock = Clock()
    board = Board(10, stall_seconds=60, clock=clock)
    assert board.healthy() is None
    with board.stepping("training"):
        clock.now = 59
        assert board.healthy() is None
        clock.now = 61
        assert board.healthy() == "step 1 has taken 61 s; the limit is 60 s"
    assert board.healthy() is None


def test_ready_means_registered_and_serving() -> None:
    board = Board(10, stall_seconds=60)
    assert board.ready() == "waiting for the model to load"
    board.update(serving=True)
    assert board.ready() is not None
    board.update(registered=True)
    assert board.ready() is None
    board.engine_problem = lambda: "the decoder failed"
    assert (board.ready(), board.healthy()) == ("the decoder failed", "the decoder failed")


def test_the_history_is_spread_over_the_run() -> None:
    board = Board(1000, stall_seconds=60)
    for step in range(1, 1001):
        board.report(step, {"reward/mean": step / 1000, "loss": 0.5})
    steps = [sample.step for sample in board.progress.history]
    assert len(steps) <= 10
    assert steps[-1] == 1000
    assert max(after - before for before, after in pairwise(steps)) <= 256


def test_progress_has_the_main_figures() -> None:
    board = Board(10, stall_seconds=60)
    board.report(3, {"reward/mean": 0.5, "loss": 0.1, "percent_correct": 50.0, "tokens_per_second": 7.0})
    board.saved(CheckpointInfo(step=3, path="/data/step-3"))
    progress = board.progress
    assert (progress.step, progress.policy_version, progress.reward_mean, progress.loss) == (3, 3, 0.5, 0.1)
    assert board.registry.get_sample_value("clotho_trainer_figure", {"figure": "reward/mean"}) == 0.5
    assert board.registry.get_sample_value("clotho_trainer_checkpoint_step") == 3


def test_the_share_of_a_step_spent_waiting_and_how_full_the_engine_was_meanwhile() -> None:
    clock = Clock()
    board = Board(10, stall_seconds=60, clock=clock, rows=8)
    board.enter("waiting")
    board.waiting.count_sequences(4)
    clock.now = 2
    board.waiting.count_sequences(12)
    clock.now = 4
    with board.stepping("training"):
        clock.now = 8
    board.report(1, board.waiting.take())
    assert (board.progress.waiting_share, board.progress.occupancy) == (0.5, 0.75)
    board.waiting.count_sequences(-16)
    clock.now = 10
    board.report(2, board.waiting.take())
    assert (board.progress.waiting_share, board.progress.occupancy) == (0.0, None), "it did not wait"


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([Load(4, 8)], 0.5),
        ([Load(20, 8)], 1.0),
        ([Load(20, 8), Load(0, 8)], 0.5),  # what waits for one engine leaves the other free
        ([Load(0, 8), Load(24, 24)], 0.75),
        ([Load(0, 0), Load(6, 8)], 0.75),  # sharded ranks do not generate
        ([Load(0, 0)], 1.0),
        ([], 1.0),
    ],
)
def test_occupancy_is_that_of_all_engines(engines: list[Load], expected: float) -> None:
    assert occupancy(engines) == expected


def test_occupancy_follows_the_reports_of_replicas_until_they_are_silent() -> None:
    clock = Clock()
    waiting = Waiting(8, clock, ranks=2)
    waiting.enter(is_waiting=True)
    waiting.count_sequences(4)
    clock.now = 4
    waiting.count_replica("0", Load(16, 16))  # two ranks half full until now
    clock.now = 8
    waiting.count_replica("0", Load(0, 16))  # of 32 rows 24 were in use
    clock.now = 12
    assert waiting.take()["occupancy"] == pytest.approx((0.5 + 0.75 + 0.25) / 3)
    clock.now = 9 + LOAD_VALID_SECONDS
    waiting.take()
    clock.now += 1
    assert waiting.take()["occupancy"] == 0.5, "it does not serve any more"
