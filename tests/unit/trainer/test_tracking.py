"""Weights & Biases: run names, offline mode, and errors that never stop a run."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import wandb

from clotho_contract.config import Endpoints, EnvironmentConfig, RunConfig, RunIdentity
from clotho_contract.settings import Model, Training, Wandb
from clotho_trainer.reporting import weights_and_biases


class Run:
    """What `wandb.init` gives; it refuses every second entry."""

    url = "https://wandb.example/run"

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, str | None]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        if len(self.entries) % 2 == 0:
            raise ConnectionError("the service is away")

    def finish(self, exit_code: int) -> None:
        raise ConnectionError("the service is away")


def config(*environments: str, mode: str = "online") -> RunConfig:
    return RunConfig(
        run=RunIdentity(name="sums", namespace="default", id="sums-1a2b"),
        endpoints=Endpoints(api_server="http://api", inference="http://inference"),
        model=Model(name="some/model"),
        training=Training(steps=2),
        environments=tuple(EnvironmentConfig(name=name) for name in environments),
        wandb=Wandb(project="letters", entity="team", mode=mode),  # type: ignore[arg-type]
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `wandb.init` was called with; online, it fails."""
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> Run:
        calls.append(options)
        if options["mode"] == "online":
            raise TimeoutError("the service is away")
        return Run()

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    return calls


@pytest.mark.parametrize(
    ("environments", "name"), [(("gsm8k", "chain-sum"), "gsm8k-sums-1a2b"), ((), "sums-sums-1a2b")]
)
def test_a_run_is_named_after_its_environment_and_resumed_after_a_restart(
    environments: tuple[str, ...], name: str, asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    weights_and_biases.start(config(*environments, mode="offline"), tmp_path / "wandb")
    (call,) = asked
    assert {key: call[key] for key in ("project", "entity", "name", "id", "group", "resume")} == {
        "project": "letters",
        "entity": "team",
        "name": name,
        "id": "sums-1a2b",
        "group": "sums-1a2b",
        "resume": "allow",
    }
    assert call["config"]["model"]["name"] == "some/model"


def test_a_name_of_its_own_is_used(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    given = config("gsm8k", mode="offline")
    assert given.wandb is not None
    named = msgspec.structs.replace(given, wandb=msgspec.structs.replace(given.wandb, name="first"))
    weights_and_biases.start(named, tmp_path / "wandb")
    assert [call["name"] for call in asked] == ["first"]


@pytest.mark.parametrize(("key", "modes"), [("secret", ["online", "offline"]), ("", ["offline"])])
def test_without_the_service_figures_are_kept_in_files(
    key: str,
    modes: list[str],
    asked: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", key)
    tracker = weights_and_biases.start(config("gsm8k"), tmp_path / "wandb")
    assert [call["mode"] for call in asked] == modes
    assert tracker.url == Run.url
    assert ("WANDB_API_KEY is not set" in caplog.text) is not bool(key)
    assert "secret" not in caplog.text


def test_tracking_errors_never_stop_a_run(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    tracker = weights_and_biases.WandbTracker(run)
    assert ("*", "step") in run.metrics, "a resumed run may log a step again"
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            tracker.log(step, {"reward/mean": 0.5}, [("a>", "aaa", 1.0)] if tracker.wants_samples(step) else [])
        tracker.log(4, {}, [("prompt", "completion", object())])  # type: ignore[list-item]
        tracker.finish(0)
    steps = [(entry["step"], "completions" in entry) for entry in run.entries[:4]]
    assert steps == [(1, False), (1, True), (2, False), (3, False)], "the figures do not depend on the samples"
    assert [entry.get("reward/mean") for entry in run.entries[:4]] == [0.5, None, 0.5, 0.5]
    table = run.entries[1]["completions"]
    assert (table.columns, table.data) == (["step", "prompt", "completion", "score"], [[1, "a>", "aaa", 1.0]])
    assert "Weights & Biases did not take step 3: the service is away" in caplog.text
    assert "could not be closed" in caplog.text
