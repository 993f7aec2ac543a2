"""A damaged database is set aside and named; the server starts with a new one instead of ending at every start."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from clotho_api_server.state.schema import FILE_NAME, FormatError, open_or_set_aside

GROUP = {"tokens": [[1]] * 2, "masks": [[1]] * 2, "scores": [1.0, 0.0]}


def overwritten(file: Path) -> None:
    file.write_bytes(b"not a database" * 1000)


def torn(file: Path) -> None:
    """A page in the middle is of another file."""
    contents = bytearray(file.read_bytes())
    contents[4096 : 4096 * 3] = b"\xa5" * 4096 * 2
    file.write_bytes(contents)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: 4096 * 3])


@pytest.mark.parametrize("damage", [overwritten, torn, truncated])
async def test_a_damaged_database_is_kept_under_another_name(
    servers, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with servers.serving() as api:
        await api.register(batch_size=2)
        await api.post("/scored_data", GROUP)
    file = servers.folder / FILE_NAME
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a log beside it could repair the file
    damage(file)
    contents = file.read_bytes()
    with caplog.at_level(logging.ERROR):
        async with servers.serving() as api:
            status = await api.get("/status")
            (kept,) = servers.folder.glob(f"{FILE_NAME}.damaged-*")
            assert kept.read_bytes() == contents
            assert f"is kept as {kept.name}; the groups queued in it are lost" in status["state_lost"]
            assert (status["registered"], status["queue_size"]) == (False, 0)
            await api.register(batch_size=2, starting_step=7)
            await api.post("/scored_data", GROUP)
            assert (await api.post("/lease", {}))["step"] == 7
    assert kept.name in caplog.text
    async with servers.serving() as api:
        assert (await api.get("/status"))["state_lost"] == "", "the new one is sound"


async def test_a_sound_database_and_one_of_another_format_are_left_alone(servers) -> None:
    async with servers.serving():
        pass
    with closing(sqlite3.connect(servers.folder / FILE_NAME)) as database:
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(FormatError):
        open_or_set_aside(servers.folder)
    assert list(servers.folder.glob("*.damaged-*")) == []
