"""What the run's ConfigMaps hold is read back as it was, and what somebody broke counts as empty."""

from clotho.api.history import (
    MOST_CONTAINER_BYTES,
    KeptLog,
    end_of_log,
    history_data,
    log_data,
    read_history,
    read_logs,
)
from clotho_contract.history import Answer, Evaluation, History, SampleGroup, Series

HISTORY = History(
    series=Series(steps=(1, 2), figures={"rewardMean": (0.1, 0.2)}),
    samples=(SampleGroup(step=2, kind="newest", environment="gsm8k", answers=(Answer(text="4", reward=1.0),)),),
    evaluations=(Evaluation(step=2, time="2026-01-01T00:00:00Z", environment="gsm8k", figures={"accuracy": 0.5}),),
)


def kept(attempt: int, title: str = "trainer", text: str = "line") -> KeptLog:
    return KeptLog(attempt=attempt, restarts=0, title=title, container="main", text=text)


def test_history_survives_its_config_map() -> None:
    assert read_history(history_data(HISTORY)) == HISTORY


def test_a_broken_key_does_not_hide_the_others() -> None:
    data = history_data(HISTORY) | {"samples.json": "{"}
    assert read_history(data) == History(series=HISTORY.series, evaluations=HISTORY.evaluations)
    assert read_history({}) == History()


def test_logs_survive_their_config_map() -> None:
    logs = (kept(1), kept(2, "gsm8k-0"), kept(2))
    assert read_logs(log_data(logs)) == logs
    assert read_logs({"notes": "made by hand", "1.x.y.z": ""}) == ()


def test_oldest_attempts_are_dropped_first() -> None:
    logs = tuple(kept(attempt, text="x" * 30_000) for attempt in range(1, 21))
    assert [log.attempt for log in read_logs(log_data(logs))] == list(range(13, 21))


def test_only_the_end_of_a_log_is_kept() -> None:
    assert end_of_log("\n".join(map(str, range(1000)))).splitlines()[0] == "800"
    long = end_of_log("漢" * 50_000)
    assert long.startswith("…")
    assert len(long.encode()) <= MOST_CONTAINER_BYTES
