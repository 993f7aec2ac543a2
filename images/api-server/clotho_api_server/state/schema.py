"""The database file: its tables, and connections that lose nothing once a commit has returned."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

FILE_NAME: Final = "trajectories.sqlite3"
_VERSION: Final = 2

_TABLES: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE environments (id INTEGER PRIMARY KEY, name TEXT NOT NULL, asked BLOB NOT NULL, connected INTEGER NOT NULL);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    state TEXT NOT NULL CHECK (state IN ('leased', 'returned', 'trained', 'done')),
    lease TEXT NOT NULL UNIQUE,
    plain INTEGER NOT NULL,  -- given out by GET /batch
    sent INTEGER NOT NULL,
    step INTEGER,
    groups INTEGER NOT NULL,
    sequences INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    state TEXT NOT NULL CHECK (state IN ('queued', 'buffered', 'batched')),
    env INTEGER,
    size INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    version INTEGER,
    batch INTEGER REFERENCES batches (id),
    segment INTEGER NOT NULL,  -- the file that holds its bytes, and where in it
    offset INTEGER NOT NULL
);
CREATE TABLE receipts (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, receipt BLOB NOT NULL);
CREATE INDEX arrival ON groups (state, id, env, size, bytes, version);
CREATE INDEX arrival_by_environment ON groups (state, env, id, size);
CREATE INDEX members ON groups (batch, id, env, size, bytes) WHERE batch IS NOT NULL;
CREATE INDEX batches_by_state ON batches (state, id);
"""


class FormatError(Exception):
    """The folder was written by a server that this one does not understand."""


class DamagedError(Exception):
    """The file is not the database that was written: what it holds cannot be trusted."""


def open_or_set_aside(folder: Path) -> tuple[sqlite3.Connection, str]:
    """A damaged database is kept under another name and a new one begun; with what was done, empty for nothing."""
    try:
        return open_database(folder), ""
    except DamagedError as error:
        kept = _set_aside(folder)
        words = f"the database was damaged ({error}) and is kept as {kept.name}; the groups queued in it are lost"
        return open_database(folder), words


def _set_aside(folder: Path) -> Path:
    kept = folder / f"{FILE_NAME}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    for suffix in ("-wal", "-shm", ""):  # the file itself last: an interrupted move is done again
        part = folder / f"{FILE_NAME}{suffix}"
        if part.exists():
            part.rename(f"{kept}{suffix}")
    return kept


def open_database(folder: Path) -> sqlite3.Connection:
    """The one connection that writes. Every commit is flushed to the disk before it returns. Raises DamagedError."""
    folder.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None, check_same_thread=False)
    try:
        _prepare_sound(connection)
    except (sqlite3.Error, FormatError, DamagedError):
        connection.close()
        raise
    return connection


def _prepare_sound(connection: sqlite3.Connection) -> None:
    try:
        prepare(connection)
        (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise  # a full disk, say
        raise DamagedError(str(error)) from error
    if finding != "ok":
        raise DamagedError(finding)


def prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version != _VERSION:
        raise FormatError(
            f"the data folder has format {version}, this server reads {_VERSION}: use the server that wrote it, "
            "or empty the folder (groups that wait are lost, the trainer goes on from its checkpoint)"
        )


def open_reader(folder: Path) -> sqlite3.Connection:
    """Readers never wait for the writer, nor it for them."""
    return sqlite3.connect(
        f"file:{folder / FILE_NAME}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
