"""A progress bar for the person at a terminal; in a container there is none."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from clotho_trainer.board import Board

_REFRESH_SECONDS = 0.5


@asynccontextmanager
async def follow(board: Board) -> AsyncIterator[None]:
    if not sys.stdout.isatty():
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
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    with tqdm(total=board.progress.total_steps, unit="step", dynamic_ncols=True) as bar:
        while True:
            progress = board.progress
            bar.total, bar.n = progress.total_steps, progress.step
            bar.set_postfix(state=progress.state, reward=progress.reward_mean, loss=progress.loss)
            await asyncio.sleep(_REFRESH_SECONDS)
