"""A progress bar on a terminal; containers have none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from clotho_trainer.reporting.board import Board

_REFRESH_SECONDS = 0.5


@asynccontextmanager
async def follow(board: Board, is_wanted: bool) -> AsyncIterator[None]:
    if not is_wanted:
        yield
        return
    painting = asyncio.create_task(_paint(board))
    try:
        yield
    finally:
        painting.cancel()
        with suppress(asyncio.CancelledError):
            await painting


async def _paint(board: Board) -> None:
    from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]

    with tqdm(total=board.progress.total_steps, unit="step", dynamic_ncols=True) as bar:
        try:
            while True:
                _show(board, bar)
                await asyncio.sleep(_REFRESH_SECONDS)
        finally:
            _show(board, bar)


def _show(board: Board, bar: Any) -> None:
    progress = board.progress
    bar.total, bar.n = progress.total_steps, progress.step
    figures = {"reward": progress.reward_mean, "loss": progress.loss, "epoch": board.figures.get("epoch")}
    bar.set_postfix(
        state=progress.state, **{name: f"{value:.3g}" for name, value in figures.items() if value is not None}
    )
