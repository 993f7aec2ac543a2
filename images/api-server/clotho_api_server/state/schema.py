"""The database file: its tables, and connections that lose nothing once a commit has returned."""

import sqlite3
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


def open_database(folder: Path) -> sqlite3.Connection:
    """The one connection that writes. Every commit is flushed to the disk before it returns."""
    folder.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None, check_same_thread=False)
    try:
        prepare(connection)
    except (sqlite3.Error, FormatError):
        connection.close()
        raise
    return connection


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
