"""The bar for the person at a terminal: where the run is, its reward, loss and epoch."""

import asyncio

import pytest

from clotho_trainer.reporting.board import Board
from clotho_trainer.reporting.progress_bar import follow


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_the_last_state_is_shown_when_the_run_ends(is_wanted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(8, stall_seconds=60)
    async with follow(board, is_wanted):
        await asyncio.sleep(0)
        board.enter("training")
        board.report(5, {"reward/mean": 0.25, "loss": -0.125, "epoch": 1.5})
    shown = capsys.readouterr().err.replace("\r", "\n").splitlines()
    if not is_wanted:
        assert shown == []
        return
    assert "5/8" in shown[-1]
    for part in ("reward=0.25", "loss=-0.125", "epoch=1.5", "state=training"):
        assert part in shown[-1]
