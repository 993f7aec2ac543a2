"""Evaluations are on disk before they are acknowledged, and few."""

import sqlite3
from pathlib import Path

from clotho_api_server.state import evaluations
from clotho_api_server.state.ledger import Ledger
from clotho_api_server.state.schema import prepare
from clotho_api_server.state.segments import Segments
from clotho_api_server.state.shares import Limits
from clotho_contract.history import MOST_EVALUATIONS, Evaluation


def evaluation(step: int) -> Evaluation:
    return Evaluation(
        step=step, time=f"2026-01-01T00:{step // 60:02}:{step % 60:02}Z", environment="env", figures={"x": 0.5}
    )


def test_the_newest_evaluations_survive_a_restart(tmp_path: Path) -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    prepare(database)
    limits = Limits(max_queue_bytes=10**9, max_off_policy_batches=100)
    first = Ledger(database, Segments(tmp_path), limits)
    for step in range(MOST_EVALUATIONS + 5):
        evaluations.add(first, evaluation(step))
    again = Ledger(database, Segments(tmp_path), limits)
    assert evaluations.known(again) == tuple(evaluation(step) for step in range(5, MOST_EVALUATIONS + 5))
